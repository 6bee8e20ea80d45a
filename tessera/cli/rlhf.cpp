// SPDX-License-Identifier: Apache-2.0
// tessera rlhf: supervised fine-tuning, a reward model and reinforcement learning, one after the
// other, from one file.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/config_file.h"
#include "tessera/cli/host_flags.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/rlhf_parts.h"
#include "tessera/cli/rollout_ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/train_plan.h"
#include "tessera/config/overrides.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::cli {
namespace {

struct RlhfFlags {
  std::string config;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set, steps, sft_only;
  std::optional<std::string> actor, reward, deployment, texts, texts_part, split;
  std::optional<double> texts_coefficient;
  bool dry_run = false;
  std::vector<std::string> hosts;  ///< the flags of hosts with their values, as typed
  Common common;
};

bool parse(RlhfFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "rlhf",
      "Trains a model to answer (sft), a reward model (reward), and the first with the scores of "
      "the second (rl). CONFIG is {\"dir\": ..., \"common\": {...}, \"sft\": {...}, \"reward\": "
      "{...}, \"rl\": {...}, \"split\": [2, 4, 4], \"sft_only\": [...]}: each step is a "
      "configuration of tessera train "
      "over what is common. "
      "The same command goes on where it stopped, in the step that it stopped in.\n\n" +
          host_flags_help(),
      {"tessera rlhf chat.json",
       "tessera rlhf chat.json -n 2 --set rl.trainer.max_steps=10",
       "tessera rlhf chat.json --step 2 3",
       "tessera rlhf chat.json --hostfile hosts"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option("--set",
                   &words.set,
                   "STEP.KEY=VALUE: overrides a key of CONFIG; the value is JSON or a string");
  arguments.option("--step", &words.steps, "Steps to run, such as 1 2 3 [all]");
  arguments.option("--actor-model,--actor_model",
                   &words.actor,
                   "Folder or run that the first step begins with: sft.model.from");
  arguments.option("--reward-model,--reward_model",
                   &words.reward,
                   "Folder or run that the second step begins with: reward.model.from");
  arguments.option(
      "--deployment-type,--deployment_type",
      &words.deployment,
      "DeepSpeed-Chat's word for the ranks: single_gpu is -n 1; with single_node give -n, with "
      "multi_node --hostfile, if there is no /job/hostfile");
  arguments.option(
      "--data-split,--data_split",
      &words.split,
      "Proportions of common.data.train that the steps train on, such as 2,4,4: split");
  arguments.option("--sft-only-data-path,--sft_only_data_path",
                   &words.sft_only,
                   "Files that the first step learns besides its other records, whole: sft_only");
  arguments.option("--unsupervised-dataset-name,--unsupervised_dataset_name",
                   &words.texts,
                   "Pretraining texts on this disk that the third step learns too: rl.rl.ptx.data");
  arguments.option("--unsupervised-dataset-config-name,--unsupervised_dataset_config_name",
                   &words.texts_part,
                   "DeepSpeed-Chat's word for a part of a downloaded dataset: refused");
  arguments.option("--unsup-coef,--unsup_coef",
                   &words.texts_coefficient,
                   "Coefficient of the loss on these texts: rl.rl.ptx.coefficient");
  arguments.flag("--dry-run,--dry_run",
                 words.dry_run,
                 "Check the first step that is not finished and print its table without training");
  arguments.common(words.common);
  arguments.also(host_flag_names());
  return arguments.parse(line);
}

/// Takes the flags of hosts out of `line` and returns them with their values. Throws as
/// take_host_flags(), and Error{Unsupported} for hosts that are started by hand.
std::vector<std::string> split_off_host_flags(std::vector<std::string>& line) {
  std::vector<std::string> rest = line, out;
  const HostFlags flags = take_host_flags(rest);
  TESSERA_REQUIRE(!flags.node_rank && !flags.no_ssh,
                  Unsupported,
                  "not supported: tessera rlhf on hosts that are started by hand",
                  "let one host start the others with --hostfile, or train the steps one by one "
                  "with tessera train");
  std::size_t next = 0;
  for (const std::string& word : line) {
    if (next < rest.size() && rest[next] == word)
      ++next;
    else
      out.push_back(word);
  }
  line = std::move(rest);
  return out;
}

/// `--step 1 2 3` and `--sft_only_data_path A B` are single options with several words.
std::vector<std::string> with_single_words(const std::vector<std::string>& line) {
  std::vector<std::string> out;
  std::string option;  // the one whose words are read
  for (const std::string& word : line) {
    const bool number = word.size() == 1 && word[0] >= '0' && word[0] <= '9';
    const bool flag = word.starts_with("--"), more = option == "--step" ? number : !flag;
    if (!option.empty() && more && out.back() != option) out.push_back(option);
    if (word == "--step" || word == "--sft_only_data_path" || word == "--sft-only-data-path") {
      option = word;
    } else if (!more) {
      option.clear();
    }
    out.push_back(word);
  }
  return out;
}

/// Returns whether step `number` (from 1) was requested. Throws Error{Config} for another word.
bool is_asked_for(const RlhfFlags& words, std::size_t number) {
  for (const std::string& step : words.steps) {
    TESSERA_REQUIRE(step == "1" || step == "2" || step == "3",
                    Config,
                    fmt::format("--step {}: the steps are 1 (sft), 2 (reward) and 3 (rl)", step),
                    "--step 1 2 3");
  }
  return words.steps.empty() ||
         std::ranges::find(words.steps, std::to_string(number)) != words.steps.end();
}

const json::Value* find_in(const json::Value& source, std::initializer_list<const char*> path) {
  const json::Value* at = &source;
  for (const char* key : path)
    at = at != nullptr && at->is_object() ? at->find(key) : nullptr;
  return at;
}

/// Returns whether the keys that all steps share name hosts.
bool names_hosts(const json::Value& source) {
  const json::Value* const hosts = find_in(source, {"common", "run", "hosts"});
  return hosts != nullptr && !hosts->is_null();
}

/// Applies DeepSpeed-Chat's flags to the configuration.
void apply_flags(const RlhfFlags& words, json::Value& source) {
  TESSERA_REQUIRE(!words.texts_part,
                  Unsupported,
                  "not supported: --unsupervised-dataset-config-name: nothing is downloaded",
                  "name the files of this part: --unsupervised-dataset-name texts.jsonl");
  if (words.texts_coefficient) {
    config::set_key(source,
                    "rl.rl.ptx.coefficient",
                    json::Value::number(*words.texts_coefficient),
                    "--unsup-coef");
  }
  for (const auto& [flag, path, key] :
       {std::tuple("--actor-model", &words.actor, "sft.model.from"),
        std::tuple("--reward-model", &words.reward, "reward.model.from"),
        std::tuple("--unsupervised-dataset-name", &words.texts, "rl.rl.ptx.data")}) {
    if (!*path) continue;
    TESSERA_REQUIRE(
        std::filesystem::exists(**path),
        Config,
        fmt::format("{} {}: there is no such path, and nothing is downloaded", flag, **path),
        path == &words.texts ? "name a file or a folder of texts on this disk"
                             : "name a Hugging Face folder, a run or a checkpoint on this disk");
    config::set_key(source, key, json::Value::string(**path), flag);
  }
  if (!words.deployment) return;
  const std::string& deployment = *words.deployment;
  const bool many = deployment == "multi_node", one = deployment == "single_gpu";
  TESSERA_REQUIRE(
      many || one || deployment == "single_node",
      Config,
      fmt::format("unknown --deployment-type {}", deployment),
      text::suggestion(deployment,
                       std::vector<std::string>{"single_gpu", "single_node", "multi_node"}));
  TESSERA_REQUIRE(!one || words.ranks.value_or(1) == 1,
                  Config,
                  "--deployment-type single_gpu with several ranks",
                  "use single_node, or remove -n");
  TESSERA_REQUIRE(many || (words.hosts.empty() && !names_hosts(source)),
                  Config,
                  fmt::format("--deployment-type {} with {}",
                              deployment,
                              words.hosts.empty() ? "run.hosts" : words.hosts.front()),
                  "use multi_node, or remove the hosts");
  TESSERA_REQUIRE(
      !many || !words.hosts.empty() || names_hosts(source),
      Config,
      fmt::format("--deployment-type multi_node without hosts: there is no {}", kDefaultHostfile),
      "name them: --hostfile hosts, or run.hosts in \"common\"");
}

/// Returns the numbers of the flag "2,4,4".
json::Value split_of(const std::string& words) {
  json::Value out = json::Value::array();
  for (const std::string& part : text::split(words, ',')) {
    try {
      out.push_back(json::parse(part, "--data-split"));
    } catch (const Error&) {
      out.push_back(json::Value::string(part));  // read_split() refuses it
    }
  }
  return out;
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
    const bool known = key == "dir" || key == "common" || key == "sft" || key == "reward" ||
                       key == "rl" || key == "split" || key == "sft_only";
    if (!known) {
      refuse(value.key_place,
             fmt::format("unknown key \"{}\"", key),
             "the keys are dir, common, sft, reward, rl, split and sft_only; those of a training "
             "stand in a step, or in common");
    }
    const bool right = key == "dir"        ? value.is_string()
                       : key == "split"    ? value.is_array()
                       : key == "sft_only" ? value.is_array() || value.is_string()
                                           : value.is_object();
    if (!right) refuse(value.place, fmt::format("\"{}\" is {}", key, value.type_name()), "");
  }
  if (source.find("dir") == nullptr)
    refuse(source.place, "\"dir\" is missing", "name the folder of the three runs: \"runs/chat\"");
  for (const RlhfStep& step : kRlhfSteps) {
    if (source.find(step.name) == nullptr)
      refuse(
          source.place, fmt::format("the step \"{}\" is missing", step.name), "write it as {...}");
  }
}

/// The seed of DeepSpeed-Chat's scripts, which divides the records unless common.trainer.seed
/// does.
constexpr std::int64_t kSplitSeed = 1234;

/// Returns the proportions of "split", or nothing.
std::vector<double> read_split(const json::Value& source) {
  std::vector<double> out;
  const json::Value* const split = source.find("split");
  if (split == nullptr) return out;
  double whole = 0;
  bool right = split->items().size() == kRlhfSteps.size();
  for (const json::Value& part : split->items()) {
    right = right && part.is_number() && part.as_double() >= 0;
    if (right) whole += out.emplace_back(part.as_double());
  }
  TESSERA_REQUIRE(right && whole > 0 && std::isfinite(whole),
                  Config,
                  fmt::format("\"split\" is {}", split->dump()),
                  "give a number for each step that is not below 0: [2, 4, 4]");
  TESSERA_REQUIRE(find_in(source, {"common", "data", "train"}) != nullptr,
                  Config,
                  "\"split\" divides the records of common.data.train, and there are none",
                  "name them there, or remove \"split\"");
  return out;
}

/// Lets each step that names no records of its own train on its part of the common ones.
void divide(json::Value& source, const std::filesystem::path& folder) {
  const std::vector<double> proportions = read_split(source);
  if (proportions.empty()) return;
  const json::Value& train = *find_in(source, {"common", "data", "train"});
  std::vector<std::string> names;
  if (train.is_string()) names.push_back(train.as_string());
  for (const json::Value& name : train.is_array() ? train.items() : std::vector<json::Value>()) {
    if (name.is_string()) names.push_back(name.as_string());
  }
  const json::Value* const seed = find_in(source, {"common", "trainer", "seed"});
  const auto parts =
      write_parts(names,
                  proportions,
                  static_cast<std::uint64_t>(
                      seed != nullptr ? seed->as_integer().value_or(kSplitSeed) : kSplitSeed),
                  folder);
  for (std::size_t number = 0; number < kRlhfSteps.size(); ++number) {
    if (find_in(source, {kRlhfSteps[number].name, "data", "train"}) != nullptr) continue;
    TESSERA_REQUIRE(proportions[number] > 0,
                    Config,
                    fmt::format("\"split\" leaves no records for the step {}, which names none",
                                kRlhfSteps[number].name),
                    fmt::format("name them in {}.data.train", kRlhfSteps[number].name));
    config::set_key(source,
                    std::string(kRlhfSteps[number].name) + ".data.train",
                    json::Value::string(parts[number].string()),
                    "split");
  }
}

/// Adds the files of "sft_only" to the records that the first step learns.
void add_sft_only(json::Value& source) {
  const json::Value* const more = source.find("sft_only");
  if (more == nullptr) return;
  const json::Value* train = find_in(source, {"sft", "data", "train"});
  if (train == nullptr) train = find_in(source, {"common", "data", "train"});
  config::set_key(source,
                  "sft.data.train",
                  interop::with_further_data(train == nullptr ? json::Value() : *train, *more),
                  "sft_only");
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
  config::set_key(source, path, std::move(value), "tessera rlhf");
}

/// Lets a reward model compare scores as DeepSpeed-Chat does, unless options are given that only
/// the comparison of last scores has.
void set_comparison(json::Value& step) {
  const json::Value* const task = find_in(step, {"task"});
  if (!task->is_string() || task->as_string() != "reward") return;
  for (const char* key : {"margin", "centering"}) {
    if (find_in(step, {"reward", key}) != nullptr) return;
  }
  set_unless_given(step, "reward.compare", json::Value::string("tokens"));
}

/// Returns the configuration of a step: the common keys, its own keys, and those that follow from
/// the earlier steps.
json::Value config_of_step(const json::Value& source, std::size_t number) {
  const RlhfStep& step = kRlhfSteps[number];
  const std::filesystem::path dir = source.find("dir")->as_string();
  const json::Value* const common = source.find("common");
  json::Value out =
      merged_over(common == nullptr ? json::Value::object() : *common, *source.find(step.name));
  config::set_key(
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
  if (number == 1) set_comparison(out);
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
    config::set_key(out, "rl.preset", json::Value::string("dschat:ppo"), "tessera rlhf");
  const json::Value* const named =
      out.find("rl")->find(preset != nullptr || algorithm == nullptr ? "preset" : "algorithm");
  // DeepSpeed-Chat's critic starts from the reward model.
  if (named->is_string() && named->as_string().ends_with("ppo"))
    set_unless_given(out, "rl.critic.from", json::Value::string(judge));
  return out;
}

/// Trains a step on the hosts that the flags name, as tessera train does, from a file that all of
/// the hosts read.
int train_on_several(const json::Value& config,
                     const std::filesystem::path& file,
                     const RlhfFlags& words) {
  std::filesystem::create_directories(file.parent_path());
  files::write_atomic(file, config.dump(2) + "\n");
  std::vector<std::string> line = {file.string()};
  line.insert(line.end(), words.hosts.begin(), words.hosts.end());
  if (words.ranks) line.insert(line.end(), {"-n", std::to_string(*words.ranks)});
  if (words.dry_run) line.emplace_back("--dry-run");
  if (words.common.quiet) line.emplace_back("--quiet");
  return commands().get("train").run(line);
}

int rlhf(const std::vector<std::string>& line) {
  RlhfFlags words;
  std::vector<std::string> own = line;
  words.hosts = split_off_host_flags(own);
  if (!parse(words, with_single_words(own))) return kExitOk;
  TESSERA_REQUIRE(!hosts::detect_launcher(),
                  Unsupported,
                  "not supported under a launcher, which starts a single job: tessera rlhf",
                  "start it without the launcher: tessera rlhf CONFIG -n 2");
  json::Value source = read_config(words.config);
  for (const std::string& assignment : words.set)
    config::apply_override(source, assignment);
  // DeepSpeed's launcher, which DeepSpeed-Chat starts on several hosts, reads it without a flag.
  const bool many = words.deployment == "multi_node";
  if (many && words.hosts.empty() && !names_hosts(source) &&
      std::filesystem::exists(kDefaultHostfile))
    words.hosts = {"--hostfile", std::string(kDefaultHostfile)};
  apply_flags(words, source);
  if (words.split) source["split"] = split_of(*words.split);
  if (!words.sft_only.empty()) {
    source["sft_only"] = json::Value::array({});
    for (const std::string& path : words.sft_only)
      source["sft_only"].push_back(json::Value::string(path));
  }
  check_rlhf(source, words.config);
  const std::filesystem::path dir = source.find("dir")->as_string();
  const files::TempDir trial;  // a dry run writes nothing into "dir"
  divide(source, words.dry_run ? trial.path() : dir / "parts");
  add_sft_only(source);
  Terminal terminal;
  for (std::size_t number = 0; number < kRlhfSteps.size(); ++number) {
    const RlhfStep& step = kRlhfSteps[number];
    if (!is_asked_for(words, number + 1)) continue;
    if (!words.common.quiet)
      terminal.line(fmt::format("step {} of {}: {}", number + 1, kRlhfSteps.size(), step.name));
    json::Value config = config_of_step(source, number);
    const json::Value* const hosts = find_in(config, {"run", "hosts"});
    if (!words.hosts.empty() || (hosts != nullptr && !hosts->is_null())) {
      const std::filesystem::path folder = words.dry_run ? trial.path() : dir;
      const int code =
          train_on_several(config, folder / (std::string(step.folder) + ".json"), words);
      if (code != kExitOk || words.dry_run) return code;
      continue;
    }
    const int all = ranks_of(words.ranks), ranks = ranks_that_learn(config, all, all);
    const planner::Plan plan =
        planner::make_plan(config, ranks, fmt::format("{} ({})", words.config, step.name));
    const int code = train_plan(plan,
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
