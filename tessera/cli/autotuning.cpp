// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/autotuning.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/flags_alone.h"
#include "tessera/cli/host_flags.h"
#include "tessera/cli/merged_config.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/tune.h"
#include "tessera/interop/foreign_flags.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/activations.h"
#include "tessera/planner/model_plan.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// Reads the members of the block.
class Block {
 public:
  explicit Block(const json::Value& block) : block_(block) {}

  void read(const char* key, bool& out) const {
    if (const json::Value* const value = find(key)) out = value->as_bool();
  }
  void read(const char* key, std::int64_t& out, std::int64_t least) const {
    const json::Value* const value = find(key);
    if (value == nullptr) return;
    const std::optional<std::int64_t> number =
        value->is_number() ? value->as_integer() : std::nullopt;
    if (!number || *number < least)
      refuse(*value, key, fmt::format("a whole number from {} on", least));
    out = *number;
  }
  void read(const char* key, fs::path& out, bool is_file = false) const {
    const json::Value* const value = find(key);
    if (value == nullptr) return;
    std::error_code ignored;
    if (!value->is_string() || value->as_string().empty() ||
        (is_file && fs::is_directory(value->as_string(), ignored)))
      refuse(*value, key, is_file ? "the name of a file" : "the name of a folder");
    out = value->as_string();
  }
  [[nodiscard]] const json::Value* find(const char* key) const {
    const json::Value* const value = block_.is_object() ? block_.find(key) : nullptr;
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[noreturn]] static void refuse(const json::Value& value,
                                  const std::string& key,
                                  const std::string& what) {
    throw Error(Error::Kind::Config,
                fmt::format("{}: autotuning.{}: expected {}", value.place.text(), key, what),
                "");
  }

 private:
  const json::Value& block_;
};

tune::TuneOptions::Order order_of(const json::Value& value) {
  using Order = tune::TuneOptions::Order;
  const std::vector<std::pair<std::string, Order>> known = {
      {"gridsearch", Order::Grid}, {"random", Order::Random}, {"model_based", Order::ModelBased}};
  for (const auto& [name, order] : known) {
    if (value.is_string() && value.as_string() == name) return order;
  }
  Block::refuse(value, "tuner_type", "gridsearch, random or model_based");
}

std::map<std::string, std::string> mappings_of(const json::Value& value) {
  std::map<std::string, std::string> out;
  if (!value.is_object()) Block::refuse(value, "arg_mappings", "an object of keys and flags");
  const std::vector<std::string> known = interop::foreign_flag_names();
  for (const auto& [key, flag] : value.members()) {
    if (!flag.is_string()) Block::refuse(flag, "arg_mappings." + key, "the name of a flag");
    std::string name = flag.as_string();
    std::ranges::replace(name, '-', '_');
    const bool found = std::ranges::any_of(known, [&](std::string one) {
      std::ranges::replace(one, '-', '_');
      return one == name;
    });
    TESSERA_REQUIRE(found,
                    Config,
                    fmt::format("{}: autotuning.arg_mappings.{}: no flag {} is known",
                                flag.place.text(),
                                key,
                                flag.as_string()),
                    text::suggestion(flag.as_string(), known));
    out[key] = flag.as_string();
  }
  return out;
}

std::map<std::string, std::int64_t> model_info_of(const json::Value& value) {
  std::map<std::string, std::int64_t> out;
  if (!value.is_object()) Block::refuse(value, "model_info", "an object");
  for (const auto& [key, member] : value.members()) {
    // null and `profile`: the facts are found, as they always are.
    if (member.is_null() || key == "profile") continue;
    const bool is_compared = key == "num_params" || key == "hidden_size" || key == "num_layers";
    TESSERA_REQUIRE(
        is_compared,
        Config,
        fmt::format("{}: autotuning.model_info.{}: the search computes it from the model",
                    member.place.text(),
                    key),
        "remove it; num_params, hidden_size and num_layers are compared with the model");
    const std::optional<std::int64_t> number =
        member.is_number() ? member.as_integer() : std::nullopt;
    if (!number || *number < 1)
      Block::refuse(member, "model_info." + key, "a whole number from 1 on");
    out[key] = *number;
  }
  return out;
}

/// The section and the name of a key that is given by its path, or by its name in any section.
std::pair<json::Value*, std::string> find_key(json::Value& config, const std::string& key) {
  if (!config.is_object()) return {nullptr, key};
  if (config.find(key) != nullptr) return {&config, key};
  const std::size_t dot = key.find('.');
  if (dot != std::string::npos) {
    json::Value* const section = config.find(key.substr(0, dot));
    return section == nullptr ? std::pair(section, key) : find_key(*section, key.substr(dot + 1));
  }
  for (auto& [name, section] : config.members()) {
    if (const auto found = find_key(section, key); found.first != nullptr) return found;
  }
  return {nullptr, key};
}

struct AutotuningFlags {
  std::string config, model, data, resume;
  std::optional<std::int64_t> ranks;
  std::vector<std::string> set;
  bool dry_run = false;
  Common common;
};

bool parse(AutotuningFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "train --autotuning",
      "Tries ZeRO stages and micro-batches before a training, as DeepSpeed's "
      "autotuner does: `tune` writes the best configuration, `run` also trains with it.",
      {"tessera train ds_config.json -n 2 --autotuning tune",
       "tessera train ds_config.json -n 2 --autotuning run"});
  arguments.positional("CONFIG", &words.config, "JSON file; comments are allowed", false);
  arguments.option("--model", &words.model, "Preset, model folder or .gguf file");
  arguments.option("--data", &words.data, "Training data");
  arguments.option(kRanksOption, &words.ranks, "Local ranks [1]");
  arguments.option("--set", &words.set, "KEY=VALUE: overrides a key of CONFIG");
  arguments.option("--resume", &words.resume, "As of tessera train");
  arguments.flag("--dry-run,--dry_run", words.dry_run, "Show the search without trials");
  arguments.common(words.common, /*has_json=*/false);
  return arguments.parse(line);
}

/// "z2_tmbspg4_gas8", as DeepSpeed names its experiments.
std::string name_of(const tune::Choice& choice) {
  std::string out =
      fmt::format("z{}_tmbspg{}_gas{}", choice.zero, choice.micro, choice.accumulation);
  if (choice.bucket > 0) out += fmt::format("_rbs{}", choice.bucket);
  return out;
}

void write_json(const fs::path& file, const json::Value& value) {
  files::write_atomic(file, value.dump(2) + "\n");
}

/// The facts that DeepSpeed's profiling run finds about a model.
json::Value model_info(const planner::Plan& plan) {
  const models::Resolved& model = plan.model().resolved;
  json::Value out;
  out["num_params"] = json::Value::integer(model.num_parameters);
  out["hidden_size"] = json::Value::integer(model.hidden_size);
  out["num_layers"] = json::Value::integer(model.num_layers);
  const planner::Activations activations = planner::predict_activations(plan, 0);
  if (activations.unknown.empty())
    out["activation_mem_per_gpu"] = json::Value::integer(activations.training);
  return out;
}

/// A trial in DeepSpeed's folder of an experiment.
tune::TrialResult run_experiment(const AutotuningBlock& block,
                                 const tune::Space& space,
                                 const json::Value& config,
                                 tune::TrialOptions options) {
  // Trials of several hosts run in threads; plans are made by one at a time.
  static std::mutex plans;
  std::unique_lock lock(plans);
  tune::Space one(config, space.own().ranks, "ds_config.json", space.machine());
  const std::string name = name_of(one.own());
  options.folder = fs::absolute(block.experiments) / name;
  const std::vector<std::string> mapped = mapped_flags(block.mappings, config);
  options.command.insert(options.command.end(), mapped.begin(), mapped.end());
  fs::create_directories(options.folder);
  write_json(options.folder / "ds_config.json", config);
  write_json(options.folder / "exp.json",
             json::Value::object({{"name", json::Value::string(name)}, {"ds_config", config}}));
  files::write_atomic(options.folder / "cmd.txt", text::join(options.command, " ") + "\n");
  lock.unlock();
  tune::TrialResult out = tune::run_trial(config, options);
  lock.lock();
  if (out.step_s > 0) {
    const double samples =
        static_cast<double>(one.own().micro * one.own().accumulation * one.own().data());
    const predict::StepTime time = predict::predict_step(one.base(), space.machine());
    json::Value metrics;
    metrics["throughput"] = json::Value::number(samples / out.step_s);
    metrics["latency"] = json::Value::number(out.step_s);
    metrics["FLOPS_per_gpu"] = json::Value::number(time.model_flops / out.step_s / one.own().ranks);
    write_json(options.folder / "metrics.json", metrics);
  }
  return out;
}

/// The stage is tuned unless the configuration gives one.
bool stage_is_free(const json::Value& source) {
  const json::Value* const zero = source.find("zero_optimization");
  const json::Value* const stage =
      zero != nullptr && zero->is_object() ? zero->find("stage") : nullptr;
  return stage == nullptr || stage->is_null() || stage->is_string();
}

// "all" and "auto" are words of the tuner alone.
void drop_word(json::Value& object, std::string_view key) {
  if (!object.is_object()) return;
  std::erase_if(object.members(), [&](const auto& member) {
    return member.first == key && member.second.is_string();
  });
}

/// Refuses statements about a model that are not true of the one that is tuned. The number of
/// parameters may be rounded.
void check_model(const AutotuningBlock& block, const models::Resolved& model) {
  for (const auto& [key, stated] : block.model_info) {
    const std::int64_t real = key == "num_params"    ? model.num_parameters
                              : key == "hidden_size" ? model.hidden_size
                                                     : model.num_layers;
    const double allowed = key == "num_params" ? 0.1 * static_cast<double>(real) : 0.0;
    TESSERA_REQUIRE(
        std::abs(static_cast<double>(stated - real)) <= allowed,
        Config,
        fmt::format("autotuning.model_info.{} is {}, and the model has {}", key, stated, real),
        "remove autotuning.model_info, or tune the model that it describes");
  }
}

void check_batch(const AutotuningBlock& block, const tune::Space& space) {
  const tune::Choice& own = space.own();
  const std::int64_t batch = own.micro * own.accumulation * own.data();
  TESSERA_REQUIRE(
      batch >= block.min_batch && batch <= block.max_batch.value_or(batch),
      Config,
      fmt::format("the global batch {} is not between autotuning.min_train_batch_size {} "
                  "and max_train_batch_size {}",
                  batch,
                  block.min_batch,
                  block.max_batch.value_or(batch)),
      "layouts are compared at one global batch: set train_batch_size within the limits");
  TESSERA_REQUIRE(block.mp_size == own.tensor * own.pipeline,
                  Config,
                  fmt::format("autotuning.mp_size is {}, and {} ranks hold one copy of the model",
                              block.mp_size,
                              own.tensor * own.pipeline),
                  fmt::format("set autotuning.mp_size to {}", own.tensor * own.pipeline));
}

}  // namespace

AutotuningBlock read_autotuning(const json::Value& source) {
  AutotuningBlock out;
  const json::Value* const found = source.is_object() ? source.find("autotuning") : nullptr;
  if (found == nullptr || !found->is_object()) return out;
  const Block block(*found);
  block.read("fast", out.fast);
  block.read("overwrite", out.overwrite);
  block.read("start_profile_step", out.start_step, 1);
  block.read("end_profile_step", out.end_step, 1);
  if (out.end_step < out.start_step)
    Block::refuse(
        *found, "end_profile_step", fmt::format("at least start_profile_step {}", out.start_step));
  block.read("tuner_early_stopping", out.early_stopping, 1);
  block.read("tuner_num_trials", out.num_trials, 1);
  block.read("min_train_batch_size", out.min_batch, 1);
  if (block.find("max_train_batch_size") != nullptr)
    block.read("max_train_batch_size", out.max_batch.emplace(), 1);
  block.read("min_train_micro_batch_size_per_gpu", out.min_micro, 1);
  block.read("max_train_micro_batch_size_per_gpu", out.max_micro, 1);
  if (out.max_micro < out.min_micro)
    Block::refuse(*found, "max_train_micro_batch_size_per_gpu", "at least the smallest one");
  block.read("num_tuning_micro_batch_sizes", out.num_micros, 1);
  block.read("mp_size", out.mp_size, 1);
  block.read("results_dir", out.results);
  block.read("exps_dir", out.experiments);
  if (const json::Value* const metric = block.find("metric")) {
    const std::string& name = metric->as_string();
    if (name != "throughput" && name != "latency" && name != "flops")
      Block::refuse(*metric, "metric", "throughput, latency or flops");
    out.metric = tune::metric_of(name);
  }
  if (const json::Value* const type = block.find("tuner_type")) out.order = order_of(*type);
  if (const json::Value* const mappings = block.find("arg_mappings"))
    out.mappings = mappings_of(*mappings);
  if (const json::Value* const info = block.find("model_info"))
    out.model_info = model_info_of(*info);
  block.read("metric_path", out.metric_path, /*is_file=*/true);
  block.read("model_info_path", out.model_info_path, /*is_file=*/true);
  return out;
}

std::vector<std::string> mapped_flags(const std::map<std::string, std::string>& mappings,
                                      const json::Value& config) {
  std::vector<std::string> out;
  for (const auto& [key, flag] : mappings) {
    json::Value rest = config;
    const auto [section, name] = find_key(rest, key);
    const json::Value* const found = section == nullptr ? nullptr : section->find(name);
    TESSERA_REQUIRE(
        found != nullptr && (found->is_number() || found->is_string()),
        Config,
        fmt::format("autotuning.arg_mappings.{}: a trial's configuration has no such number or "
                    "text",
                    key),
        "map train_micro_batch_size_per_gpu, gradient_accumulation_steps, or another key that the "
        "configuration has");
    const json::Value value = *found;
    std::vector<std::string> words = {flag, value.is_string() ? value.as_string() : value.dump()};
    if (!flag.starts_with("-")) words.front() = "--" + flag;
    out.insert(out.end(), words.begin(), words.end());
    // The flag alone has to give the key its value.
    std::erase_if(section->members(), [&](const auto& member) { return member.first == name; });
    const interop::ForeignFlags taken = interop::take_foreign_flags(words);
    (void)interop::apply(taken, rest);
    const auto [again, same] = find_key(rest, key);
    const json::Value* const set = again == nullptr ? nullptr : again->find(same);
    TESSERA_REQUIRE(words.empty() && set != nullptr && set->dump() == value.dump(),
                    Config,
                    fmt::format("autotuning.arg_mappings.{}: {} sets another key", key, flag),
                    "map each key to the flag that sets it");
  }
  return out;
}

std::optional<std::string> take_autotuning(std::vector<std::string>& words) {
  constexpr std::string_view kFlag = "--autotuning";
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string mode;
    if (words[i] == kFlag) {
      mode = i + 1 < words.size() ? words[i + 1] : "";
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(std::min(i + 2, words.size())));
    } else if (words[i].starts_with(std::string(kFlag) + "=")) {
      mode = words[i].substr(kFlag.size() + 1);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      continue;
    }
    TESSERA_REQUIRE(mode == "tune" || mode == "run",
                    Config,
                    fmt::format("--autotuning {}: expected tune or run", mode),
                    "--autotuning tune writes the best configuration, run also trains with it");
    return mode;
  }
  return std::nullopt;
}

int autotune(const std::string& mode, const std::vector<std::string>& line) {
  std::vector<std::string> rest = line;
  const HostFlags host_flags = take_host_flags(rest);
  interop::ForeignFlags foreign = interop::take_foreign_flags(rest);
  AutotuningFlags words;
  if (!parse(words, rest)) return kExitOk;
  const HostChoice choice = choose_hosts(host_flags, words.ranks);
  const std::string path = interop::config_of(words.config, foreign);
  json::Value source = path.empty() ? configuration_from_flags(words.model, words.data, foreign)
                                    : read_configs(words.config, foreign);
  add_model_and_data(words.model, words.data, foreign);
  for (const std::string& note : apply(foreign, source, words.set))
    log::warn(note);
  const AutotuningBlock block = read_autotuning(source);
  const bool free_stage = stage_is_free(source);
  std::erase_if(source.members(), [](const auto& member) { return member.first == "autotuning"; });
  if (json::Value* const zero = source.find("zero_optimization")) drop_word(*zero, "stage");
  int ranks = ranks_of(words.ranks);
  if (!choice.pool.empty()) ranks = fewest_slots(choice.pool);

  const std::string name = path.empty() ? name_from_flags(words.model) : path;
  {
    // Bad input is refused before this machine is measured, which takes most of a minute.
    const tune::Space space(source, ranks, name, predict::DescribedMachine());
    check_batch(block, space);
    check_model(block, space.base().model().resolved);
    (void)mapped_flags(block.mappings, tune::with_choice(space.source(), space.own()));
  }
  const predict::DescribedMachine machine = measured_machine(!words.common.quiet);
  tune::Space space(source, ranks, name, machine);
  tune::TuneOptions options;
  tune::SearchOptions& search = options.search;
  search.metric = block.metric;
  search.fixed = tune::fixed_of({"parallel",
                                 "activation_checkpointing",
                                 "run.threads_per_rank",
                                 "zero_optimization.reduce_bucket_size"});
  search.fixed.zero = !free_stage;
  search.least_micro = block.min_micro;
  search.most_micro = block.max_micro;
  search.most = static_cast<std::size_t>(block.num_micros) * (free_stage ? 4 : 1);
  search.memory = [](int count) { return static_cast<double>(launch::available_memory()) / count; };
  if (words.dry_run) return show_search(space, search, /*as_json=*/false);

  const fs::path results = fs::absolute(block.results);
  fs::create_directories(results / "profile_model_info");
  for (const fs::path& file : {block.metric_path, block.model_info_path}) {
    if (!file.empty()) fs::create_directories(fs::absolute(file).parent_path());
  }
  const json::Value info = model_info(space.base());
  write_json(results / "profile_model_info" / "model_info.json", info);
  if (!block.model_info_path.empty()) write_json(block.model_info_path, info);
  options.budget_s = 1e9;  // DeepSpeed limits the number of trials
  options.order = block.order;
  options.patience = static_cast<std::size_t>(block.early_stopping);
  options.most_trials = static_cast<std::size_t>(block.num_trials);
  options.first_step = block.start_step;
  options.steps = block.end_step - block.start_step + 1;
  options.folder = results;
  options.overwrite = block.overwrite;
  if (!block.fast) options.buckets = {50'000'000, 500'000'000, 1'000'000'000};
  set_trial_command(options);
  set_trial_hosts(options, host_flags, choice, fs::absolute(block.experiments));
  options.run = [&](const json::Value& config, const tune::TrialOptions& one) {
    return run_experiment(block, space, config, one);
  };
  const tune::Tuned tuned = tune_and_tell(space, options, words.common.quiet);
  std::string summary;
  for (const std::string& text : tune::tuned_lines(tuned, space, block.metric))
    summary += text + "\n";
  files::write_atomic(results / "summary.txt", summary);
  if (stopped_by_user()) return kExitInterrupted;
  if (!tuned.winner) return kExitIncomplete;
  const fs::path best = results / "ds_config_optimal.json";
  const tune::Choice& winner = tuned.trials[*tuned.winner].choice;
  const json::Value optimal = tune::with_choice(space.source(), winner);
  write_json(best, optimal);
  std::vector<std::string> command = {
      "tessera", "train", best.string(), "-n", std::to_string(ranks)};
  const std::vector<std::string> mapped = mapped_flags(block.mappings, optimal);
  command.insert(command.end(), mapped.begin(), mapped.end());
  files::write_atomic(results / "cmd_optimal.txt", text::join(command, " ") + "\n");
  if (!block.metric_path.empty()) {
    const fs::path metrics = block.experiments / name_of(winner) / "metrics.json";
    files::write_atomic(block.metric_path, files::read(metrics));
  }
  if (!words.common.quiet) std::printf("best        %s\n", best.c_str());
  if (mode == "tune") return kExitOk;
  if (!words.resume.empty()) command.insert(command.end(), {"--resume", words.resume});
  return commands().get("train").run({command.begin() + 2, command.end()});
}

}  // namespace tessera::cli
