// SPDX-License-Identifier: Apache-2.0
// tessera train: applies the command line to a configuration and runs the training.
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/foreign_flags.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/run.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/train_config.h"

namespace tessera::cli {
namespace {

struct TrainWords {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  std::string resume = "auto";
  bool dry_run = false;
  Common common;
};

bool parse(TrainWords& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "train",
      "Trains a model as configured by CONFIG, on one or more ranks.\n\n" + foreign_flags_help(),
      {"tessera train my.json",
       "tessera train my.json -n 2",
       "tessera train my.json --set optimizer.lr=3e-4 --set trainer.max_steps=1000",
       "tessera train my.json --dry-run          check everything without training",
       "tessera train my.json --resume never     start over; the old contents are moved aside"});
  arguments.positional(
      "CONFIG", &words.config, "JSON file; comments are allowed", /*required=*/false);
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option(
      "--set", &words.set, "KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.option(
      "--resume", &words.resume, "auto, never, or the path of a run or checkpoint [auto]");
  arguments.flag("--dry-run,--dry_run",
                 words.dry_run,
                 "Check everything and print the table without training");
  arguments.common(words.common, /*has_json=*/true);
  arguments.also(foreign_flag_names());
  return arguments.parse(line);
}

json::Value memory_json(const planner::Plan& plan) {
  const planner::MemoryEstimate need = planner::estimate_memory(plan);
  json::Value out = json::Value::object({{"parameters", json::Value::integer(need.parameters)},
                                         {"gradients", json::Value::integer(need.gradients)},
                                         {"optimizer", json::Value::integer(need.optimizer)},
                                         {"activations", json::Value::integer(need.activations)},
                                         {"other", json::Value::integer(need.other)},
                                         {"shared", json::Value::integer(need.shared)}});
  if (!need.unknown.empty()) {
    out["activations"] = json::Value();
    out["why_unknown"] = json::Value::string(need.unknown);
  }
  return out;
}

// Prints one JSON object: the plan, and after a run its result.
void print_json(const planner::Plan& plan, int code, bool dry_run) {
  json::Value out;
  out["exit_code"] = json::Value::integer(code);
  out["run_dir"] = json::Value::string(plan.run_dir);
  out["parameters"] = json::Value::integer(plan.model.num_parameters);
  out["memory_per_rank"] = memory_json(plan);
  if (dry_run) {
    out["config"] = plan.resolved;
  } else {
    const std::filesystem::path status = std::filesystem::path(plan.run_dir) / "status.json";
    std::error_code ignored;
    if (std::filesystem::exists(status, ignored)) {
      out["status"] = json::parse_strict(files::read(status), status.string());
    }
  }
  std::printf("%s\n", out.dump().c_str());
}

int train(const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  for (const std::string& word : line)
    refuse_script(word, line);
  const ForeignFlags foreign = take_foreign_flags(rest);
  TrainWords words;
  if (!parse(words, rest)) return kExitOk;
  const std::string path = config_of(words.config, foreign);
  TESSERA_REQUIRE(!path.empty(),
                  Config,
                  "tessera train: CONFIG is missing",
                  "tessera init nano --data my.txt > my.json; tessera train my.json");
  for (const std::string& note : foreign.notes)
    log::warn(note);

  const int ranks = ranks_of(words.ranks);
  json::Value source = read_config(path);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  planner::Plan plan = planner::make_plan(source, ranks, name_of_config(path));
  plan.quiet = words.common.quiet || words.common.json;

  Terminal terminal;
  const engine::TrainCommand command{.resume = engine::resume_from(words.resume),
                                     .dry_run = words.dry_run,
                                     .quiet = plan.quiet,
                                     .console = &terminal};
  const int code = engine::run_training(plan, command);
  const auto launcher = launch::detect_launcher();
  if (words.common.json && (!launcher || launcher->rank == 0))
    print_json(plan, code, words.dry_run);
  else if (!words.dry_run)
    std::clearerr(
        stdout);  // training does not fail for lack of a reader, because its folder has everything
  return code;
}

TESSERA_COMMAND("train", "train a model from a configuration", train);

}  // namespace
}  // namespace tessera::cli
