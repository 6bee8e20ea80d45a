// SPDX-License-Identifier: Apache-2.0
// tessera rlhf: supervised fine-tuning, a reward model and reinforcement learning, one after the
// other, from one file.
#include <algorithm>
#include <filesystem>
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
#include "tessera/cli/rollout_ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/train_plan.h"
#include "tessera/config/overrides.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/interop/deepspeed/chat_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/rlhf/three_steps.h"

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
      "The same command resumes in the interrupted step.\n\n" +
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
  arguments.option(
      "--sft-only-data-path,--sft_only_data_path",
      &words.sft_only,
      "Files that the first step learns in addition to its other records, whole: sft_only");
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

/// Returns whether the keys that all steps share name hosts.
bool names_hosts(const json::Value& source) {
  const json::Value* const hosts = rlhf::find_in(source, {"common", "run", "hosts"});
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

/// Adds the files of "sft_only" to the records that the first step learns.
void add_sft_only(json::Value& source) {
  const json::Value* const more = source.find("sft_only");
  if (more == nullptr) return;
  const json::Value* train = rlhf::find_in(source, {"sft", "data", "train"});
  if (train == nullptr) train = rlhf::find_in(source, {"common", "data", "train"});
  config::set_key(source,
                  "sft.data.train",
                  interop::with_further_data(train == nullptr ? json::Value() : *train, *more),
                  "sft_only");
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
  rlhf::check_steps(source, words.config);
  const std::filesystem::path dir = source.find("dir")->as_string();
  const files::TempDir trial;  // a dry run writes nothing into "dir"
  rlhf::divide_records(source, words.dry_run ? trial.path() : dir / "parts");
  add_sft_only(source);
  Terminal terminal;
  for (std::size_t number = 0; number < rlhf::kRlhfSteps.size(); ++number) {
    const rlhf::RlhfStep& step = rlhf::kRlhfSteps[number];
    if (!is_asked_for(words, number + 1)) continue;
    if (!words.common.quiet)
      terminal.line(
          fmt::format("step {} of {}: {}", number + 1, rlhf::kRlhfSteps.size(), step.name));
    json::Value config = rlhf::config_of_step(source, number);
    const json::Value* const hosts = rlhf::find_in(config, {"run", "hosts"});
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
