// SPDX-License-Identifier: Apache-2.0
// tessera config explain FILE: shows every resolved value of a configuration and its source.
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/config_commands.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/merged_config.h"
#include "tessera/engine/formula.h"
#include "tessera/interop/deepspeed/keys.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/planner/config_paths.h"
#include "tessera/planner/validate.h"
#include "tessera/report/explain.h"

namespace tessera::cli {
namespace {

struct ExplainFlags {
  std::string file;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  bool strict = false;
  Common common;
};

bool parse(ExplainFlags& words, const std::vector<std::string>& line) {
  Arguments arguments("config explain",
                      "Prints every value of FILE and its source, and the formula of its loss.",
                      {"tessera config explain ds_config.json",
                       "tessera config explain ds_config.json -n 8 --learning_rate 3e-5 --bf16",
                       "tessera config explain my.json --strict --json"});
  arguments.positional("FILE", &words.file, "JSON, Hjson or base64", /*required=*/false);
  arguments.option("-n,--nproc-per-node,--nproc_per_node,--num-gpus,--num_gpus",
                   &words.ranks,
                   "Number of ranks [the fewest for which the batch sizes are consistent]");
  arguments.option("--set", &words.set, "KEY=VALUE: overrides a key of FILE");
  arguments.flag("--strict", words.strict, "Exit with code 2 if train would reject anything");
  arguments.common(words.common, /*has_json=*/true);
  arguments.also(interop::foreign_flag_names());
  return arguments.parse(line);
}

std::optional<int> asked_ranks(const ExplainFlags& words) {
  if (!words.ranks) return std::nullopt;
  TESSERA_REQUIRE(*words.ranks >= 1 && *words.ranks <= kMostRanks,
                  Config,
                  fmt::format("-n {}: expected 1 to {} ranks", *words.ranks, kMostRanks),
                  "use -n 2");
  return static_cast<int>(*words.ranks);
}

// Reports unknown keys; in a file for DeepSpeed they may belong to another tool.
void tell_unknown(const std::vector<std::string>& unknown, bool pure, bool quiet) {
  if (unknown.empty()) return;
  if (!pure) throw Error(Error::Kind::Config, text::join(unknown, "\n"));
  for (const std::string& line : unknown)
    (quiet ? log::error : log::warn)(line + " (train would reject it)");
}

// Reports keys that train would refuse, if there is no table.
void tell_refused(const report::Explanation& explanation) {
  for (const auto* keys : {&explanation.keys, &explanation.refused}) {
    for (const report::ExplainedKey& key : *keys) {
      if (key.refused.empty()) continue;
      const std::string place = key.source.empty() ? "" : key.source + ": ";
      log::error(fmt::format("{}{}: {} (train would reject it)", place, key.path, key.refused));
    }
  }
}

}  // namespace

int explain_file(const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  const interop::ForeignFlags foreign = interop::take_foreign_flags(rest);
  ExplainFlags words;
  if (!parse(words, rest)) return kExitOk;
  const std::string file = interop::config_of(words.file, foreign);
  TESSERA_REQUIRE(!file.empty(), Config, "tessera config explain: FILE is missing", "");
  json::Value source = read_configs(words.file, foreign);
  const bool pure = interop::is_pure_deepspeed(source, planner::config_paths());
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);

  const report::Explanation explanation =
      report::explain_config(source, asked_ranks(words), name_of_config(file), engine::formula_of);
  const std::string out = words.common.json ? report::as_json(explanation).dump(2) + "\n"
                                            : text::printable(report::as_text(explanation));
  if (words.common.quiet)
    tell_refused(explanation);
  else
    std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
  tell_unknown(explanation.unknown, pure, words.common.quiet);
  const bool refuse = words.strict && !explanation.trains();
  return refuse ? exit_code(Error::Kind::Config) : kExitOk;
}

}  // namespace tessera::cli
