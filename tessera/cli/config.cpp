// SPDX-License-Identifier: Apache-2.0
// tessera config: what the keys of a configuration mean.
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/config/document.h"
#include "tessera/planner/train_config.h"

namespace tessera::cli {
namespace {

constexpr const char* kIntroduction =
    "# Configuration\n"
    "\n"
    "This page is made by `tessera config docs` from the list that reads, checks and writes the "
    "keys.\n"
    "\n"
    "A configuration is one JSON object. `//`, `/* */` and `#` comments and trailing commas are "
    "allowed, duplicate keys\n"
    "are not. `5e8` is an integer where one is meant; `null` and `\"auto\"` count as not given. "
    "Every message has line,\n"
    "column and key path, and all problems are told at once. `--set KEY=VALUE` overrides a key; "
    "`optimizer.lr` and\n"
    "`scheduler.X` are short for `optimizer.params.lr` and `scheduler.params.X`. Relative paths "
    "are relative to the\n"
    "working directory.\n";

constexpr const char* kDeepSpeed =
    "\n## DeepSpeed's other keys\n"
    "\n"
    "A DeepSpeed configuration is valid as it stands. These of its keys are known beside the ones "
    "above; anything else\n"
    "inside of its blocks is an error.\n";

int explain(const std::string& path) {
  const std::vector<config::KeyDoc> keys = config::document(planner::TrainConfig());
  bool found = false;
  std::vector<std::string> names;
  for (const config::KeyDoc& key : keys) {
    names.push_back(key.path);
    if (key.path != path && key.path.substr(0, path.size() + 1) != path + "." && !path.empty())
      continue;
    std::fputs(config::explain(key).c_str(), stdout);
    found = true;
  }
  TESSERA_REQUIRE(
      found, Config, fmt::format("there is no key {}", path), text::suggestion(path, names));
  return kExitOk;
}

int docs() {
  const std::string keys = config::markdown(config::document(planner::TrainConfig()));
  std::printf(
      "%s%s%s%s", kIntroduction, keys.c_str(), kDeepSpeed, config::deepspeed_markdown().c_str());
  return kExitOk;
}

int config_command(const std::vector<std::string>& line) {
  std::string what, key;
  Arguments arguments("config",
                      "Explains the keys of a configuration.",
                      {"tessera config explain                   every key",
                       "tessera config explain optimizer         one section",
                       "tessera config explain trainer.seed      one key",
                       "tessera config docs                      docs/config.md"});
  arguments.positional("WHAT", &what, "explain or docs");
  arguments.positional("KEY", &key, "Key or section", /*required=*/false);
  if (!arguments.parse(line)) return kExitOk;
  if (what == "explain") return explain(key);
  if (what == "docs") return docs();
  const bool later = what == "schema" || what == "convert";
  throw Error(later ? Error::Kind::Unsupported : Error::Kind::Config,
              later ? "not built yet: tessera config " + what : "unknown: tessera config " + what,
              "tessera config explain");
}

TESSERA_COMMAND("config", "explain the keys of a configuration", config_command);

}  // namespace
}  // namespace tessera::cli
