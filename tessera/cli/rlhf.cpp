// SPDX-License-Identifier: Apache-2.0
// tessera rlhf: supervised fine-tuning, a reward model and reinforcement learning, one after the
// other, from one file.
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/run.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/overrides.h"
#include "tessera/planner/train_config.h"

namespace tessera::cli {
namespace {

struct RlhfWords {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  bool dry_run = false;
  Common common;
};

bool parse(RlhfWords& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "rlhf",
      "Trains a model to answer (sft), a reward model (reward), and the first with the scores of "
      "the second (rl). CONFIG is {\"dir\": ..., \"common\": {...}, \"sft\": {...}, \"reward\": "
      "{...}, \"rl\": {...}}: each step is a configuration of tessera train over what is common. "
      "The same command goes on where it stopped, in the step that it stopped in.",
      {"tessera rlhf chat.json", "tessera rlhf chat.json -n 2 --set rl.trainer.max_steps=10"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option("--set",
                   &words.set,
                   "STEP.KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.flag("--dry-run,--dry_run",
                 words.dry_run,
                 "Check the first step that is not finished and print its table without training");
  arguments.common(words.common);
  return arguments.parse(line);
}

struct RlhfStep {
  const char* name;
  const char* task;
  const char* folder;
};
constexpr std::array<RlhfStep, 3> kRlhfSteps = {
    {{"sft", "sft", "1-sft"}, {"reward", "reward", "2-reward"}, {"rl", "rl", "3-rl"}}};

/// Returns `base` with the members of `more`, which take precedence, merged object by object.
json::Value merged_over(json::Value base, const json::Value& more) {
  if (!base.is_object() || !more.is_object()) return more;
  for (const auto& [key, value] : more.members()) {
    json::Value* const found = base.find(key);
    json::Value whole = found == nullptr ? value : merged_over(*found, value);
    base[key] = std::move(whole);
  }
  return base;
}

void check_rlhf(const json::Value& source, const std::string& name) {
  const auto refuse = [&](const json::Place& place, const std::string& what, std::string fix) {
    throw Error(Error::Kind::Config,
                fmt::format("{}: {}", place.line > 0 ? place.text() : name, what),
                std::move(fix));
  };
  if (!source.is_object()) refuse(source.place, "the configuration is no object", "write {...}");
  for (const auto& [key, value] : source.members()) {
    const bool known =
        key == "dir" || key == "common" || key == "sft" || key == "reward" || key == "rl";
    if (!known) {
      refuse(value.key_place,
             fmt::format("unknown key \"{}\"", key),
             "the keys are dir, common, sft, reward and rl; those of a training stand in a step, "
             "or in common");
    }
    if (key == "dir" ? !value.is_string() : !value.is_object())
      refuse(value.place, fmt::format("\"{}\" is {}", key, value.type_name()), "");
  }
  if (source.find("dir") == nullptr)
    refuse(source.place, "\"dir\" is missing", "name the folder of the three runs: \"runs/chat\"");
  for (const RlhfStep& step : kRlhfSteps) {
    if (source.find(step.name) == nullptr)
      refuse(
          source.place, fmt::format("the step \"{}\" is missing", step.name), "write it as {...}");
  }
}

void set_unless_given(json::Value& source, const char* path, json::Value value) {
  json::Value* at = &source;
  std::string rest = path;
  for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    at = at->find(rest.substr(0, dot));
    if (at == nullptr || !at->is_object()) break;
    rest = rest.substr(dot + 1);
  }
  if (at != nullptr && at->is_object() && at->find(rest) != nullptr) return;
  planner::set_key(source, path, std::move(value), "tessera rlhf");
}

/// Returns the configuration of a step: the common keys, its own keys, and those that follow from
/// the earlier steps.
json::Value config_of_step(const json::Value& source, std::size_t number) {
  const RlhfStep& step = kRlhfSteps[number];
  const std::filesystem::path dir = source.find("dir")->as_string();
  const json::Value* const common = source.find("common");
  json::Value out =
      merged_over(common == nullptr ? json::Value::object() : *common, *source.find(step.name));
  planner::set_key(
      out, "run.dir", json::Value::string((dir / step.folder).string()), "tessera rlhf");
  set_unless_given(out, "task", json::Value::string(step.task));
  if (number == 0) return out;
  // The first step starts from another model than the others.
  const json::Value* const own = source.find(step.name)->find("model");
  if (own == nullptr || own->find("from") == nullptr) {
    json::Value model =
        json::Value::object({{"from", json::Value::string((dir / kRlhfSteps[0].folder).string())}});
    out["model"] = own == nullptr ? std::move(model) : merged_over(std::move(model), *own);
  }
  if (number != 2) return out;
  const std::string judge = (dir / kRlhfSteps[1].folder).string();
  set_unless_given(
      out,
      "rl.rewards",
      json::Value::array({json::Value::object(
          {{"type", json::Value::string("model")}, {"from", json::Value::string(judge)}})}));
  const json::Value& rl = *out.find("rl");
  const json::Value *preset = rl.find("preset"), *algorithm = rl.find("algorithm");
  if (preset == nullptr && algorithm == nullptr)
    planner::set_key(out, "rl.preset", json::Value::string("dschat:ppo"), "tessera rlhf");
  const json::Value* const named =
      out.find("rl")->find(preset != nullptr || algorithm == nullptr ? "preset" : "algorithm");
  // DeepSpeed-Chat's critic starts from the reward model.
  if (named->is_string() && named->as_string().ends_with("ppo"))
    set_unless_given(out, "rl.critic.from", json::Value::string(judge));
  return out;
}

int rlhf(const std::vector<std::string>& line) {
  RlhfWords words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(!launch::detect_launcher(),
                  Unsupported,
                  "not supported under a launcher, which starts a single job: tessera rlhf",
                  "start it without the launcher: tessera rlhf CONFIG -n 2");
  json::Value source = read_config(words.config);
  for (const std::string& assignment : words.set)
    planner::apply_override(source, assignment);
  check_rlhf(source, words.config);
  Terminal terminal;
  for (std::size_t number = 0; number < kRlhfSteps.size(); ++number) {
    const RlhfStep& step = kRlhfSteps[number];
    if (!words.common.quiet)
      terminal.line(fmt::format("step {} of {}: {}", number + 1, kRlhfSteps.size(), step.name));
    planner::Plan plan = planner::make_plan(config_of_step(source, number),
                                            ranks_of(words.ranks),
                                            fmt::format("{} ({})", words.config, step.name));
    plan.quiet = words.common.quiet;
    const int code = engine::run_training(std::move(plan),
                                          {.resume = {},
                                           .dry_run = words.dry_run,
                                           .quiet = words.common.quiet,
                                           .console = &terminal});
    if (code != kExitOk || words.dry_run) return code;
  }
  return kExitOk;
}

TESSERA_COMMAND("rlhf", "fine-tune, train a reward model and reinforce, from one file", rlhf);

}  // namespace
}  // namespace tessera::cli
