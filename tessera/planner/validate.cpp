// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/validate.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/text.h"
#include "tessera/memory/device.h"
#include "tessera/models/objective.h"
#include "tessera/optim/make_rule.h"
#include "tessera/optim/make_schedule.h"
#include "tessera/parallel/offload_rules.h"
#include "tessera/parallel/param_groups.h"
#include "tessera/parallel/rank_product.h"
#include "tessera/parallel/zero_rules.h"
#include "tessera/planner/early_updates.h"
#include "tessera/planner/idle_keys.h"

namespace tessera::planner {

parallel::OffloadChoice offload_choice(const TrainConfig& config) {
  return {.zero = config.zero_optimization,
          .recompute = config.activation_checkpointing,
          .parallel = config.parallel,
          .optimizer = config.optimizer,
          .bf16_masters = config.bf16.bf16_master_weights_and_grads,
          .once = config.gradient_reduction == parallel::Reduction::Once,
          .device = config.run.device};
}

namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

BatchSizes complete(const TrainConfig& config, std::int64_t ranks) {
  const auto &train = config.train_batch_size, &micro = config.train_micro_batch_size_per_gpu,
             &accumulation = config.gradient_accumulation_steps;
  if (train && micro && accumulation) return {*train, *micro, *accumulation};
  if (train && micro) return {*train, *micro, *train / *micro / ranks};
  if (train && accumulation) return {*train, *train / ranks / *accumulation, *accumulation};
  if (train) return {*train, *train / ranks, 1};
  const std::int64_t passes = accumulation.value_or(1);
  return {*micro * passes * ranks, *micro, passes};
}

std::string nearest_batches(std::int64_t train, std::int64_t unit) {
  const std::int64_t below = train / unit * unit;
  const std::string above = std::to_string(below + unit);
  return fmt::format("set train_batch_size to {}",
                     below > 0 ? std::to_string(below) + " or " + above : above);
}

// Returns what to type so that the equation holds.
std::string batch_fix(const TrainConfig& config, const BatchSizes& sizes, std::int64_t ranks) {
  const auto &train = config.train_batch_size, &micro = config.train_micro_batch_size_per_gpu,
             &accumulation = config.gradient_accumulation_steps;
  if (train && micro && accumulation) {
    return fmt::format("set train_batch_size to {}, or remove one of the three",
                       *micro * *accumulation * ranks);
  }
  if (micro) return nearest_batches(sizes.global, *micro * ranks);
  return nearest_batches(sizes.global, accumulation.value_or(1) * ranks);
}

DType type_of_sums(const TrainConfig& config) {
  return config.data_types.grad_accum_dtype.value_or(
      config.bf16.bf16_master_weights_and_grads ? DType::BF16 : DType::F32);
}

/// Refuses features that are built for memory of the host only.
void check_device(const TrainConfig& config,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  DeviceKind kind = DeviceKind::Cpu;
  try {
    kind = memory::device_kind(config.run.device);
  } catch (const Error& error) {
    return add("run.device", error.what(), error.fix());
  }
  if (kind == DeviceKind::Cpu) return;
  const std::string on = fmt::format("not built yet on the device \"{}\"", name(kind));
  const parallel::ZeroOptions& zero = config.zero_optimization;
  if (zero.zero_quantized_weights.value_or(false))
    add("zero_optimization.zero_quantized_weights",
        on + ": weights that travel in eight bits",
        "set it to false");
  if (zero.zero_quantized_nontrainable_weights.value_or(false))
    add("zero_optimization.zero_quantized_nontrainable_weights",
        on + ": weights that travel in eight bits",
        "set it to false");
  if (config.gradient_travel() == DType::U8)
    add("communication_data_type",
        on + ": gradients that travel in eight bits",
        "set it to \"bf16\"");
  parallel::check_offload_on_device(offload_choice(config), problems, origins);
}

void check_exchange(const TrainConfig& config,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const optim::ExchangeNeeds needs = optim::exchange_needs(config.optimizer);
  if (!needs.compressed) return;
  const std::int64_t stage = config.zero_optimization.stage.value_or(0);
  if (stage >= 2) {
    problems.add(origins.place("zero_optimization.stage"),
                 "zero_optimization.stage",
                 fmt::format("{} keeps a part of the gradient on each rank, and {} compresses the "
                             "whole gradient of each",
                             stage,
                             config.optimizer.type),
                 fmt::format("set zero_optimization.stage to {}", needs.local_weights ? 0 : 1));
  }
  if (config.gradient_reduction == parallel::Reduction::Each &&
      origins.given("gradient_reduction")) {
    problems.add(origins.place("gradient_reduction"),
                 "gradient_reduction",
                 fmt::format("\"each\" reduces the ranks' gradients, and {} keeps them apart",
                             config.optimizer.type),
                 "set it to \"once\", or remove it");
  }
  const std::array<std::pair<const char*, bool>, 3> narrow = {
      {{"bf16.bf16_master_weights_and_grads",
        config.bf16.enabled && config.bf16.bf16_master_weights_and_grads},
       {"bf16.bf16_optimizer_states", config.bf16.enabled && config.bf16.bf16_optimizer_states},
       {"fp16.fp16_master_weights_and_grads",
        config.fp16.enabled && config.fp16.fp16_master_weights_and_grads}}};
  for (const auto& [key, on] : narrow) {
    if (!on) continue;
    problems.add(
        origins.place(key),
        key,
        fmt::format("{} carries over what compression lost, which 16 bits would lose again",
                    config.optimizer.type),
        "set it to false: masters and moments in fp32");
    break;
  }
}

}  // namespace

const char* given_batch_key(const TrainConfig& config) {
  if (config.train_batch_size) return kTrain;
  return config.train_micro_batch_size_per_gpu ? kMicro : kAccumulation;
}

bool says_batch(const TrainConfig& config,
                config::Problems& problems,
                const config::Origins& origins) {
  // A key that could not be read is not a missing key.
  for (const char* name : {kTrain, kMicro, kAccumulation}) {
    if (problems.concern(name)) return false;
  }
  if (config.train_batch_size || config.train_micro_batch_size_per_gpu) return true;
  problems.add(origins.place(given_batch_key(config)),
               config.gradient_accumulation_steps ? kAccumulation : kTrain,
               "the batch size is missing: neither train_batch_size nor "
               "train_micro_batch_size_per_gpu is given",
               "add \"train_batch_size\": 16, in sequences",
               config::Problems::Kind::Missing);
  return false;
}

std::optional<BatchSizes> solve_batch(const TrainConfig& config,
                                      int ranks,
                                      config::Problems& problems,
                                      const config::Origins& origins) {
  if (!says_batch(config, problems, origins)) return std::nullopt;
  const std::string key = given_batch_key(config);
  if (config.train_batch_size && *config.train_batch_size < ranks) {
    problems.add(origins.place(kTrain),
                 kTrain,
                 fmt::format("{} ranks cannot share a global batch of {} sequences",
                             ranks,
                             *config.train_batch_size),
                 fmt::format("raise train_batch_size to at least {}, or use at most {} ranks",
                             ranks,
                             *config.train_batch_size));
    return std::nullopt;
  }
  const BatchSizes sizes = complete(config, ranks);
  const std::int64_t product = sizes.micro * sizes.accumulation * ranks;
  if (product == sizes.global && product > 0) return sizes;
  problems.add(origins.place(key),
               key,
               fmt::format("the batch arithmetic does not close: train_batch_size {} is not "
                           "micro {} x accumulation {} x ranks {} = {}",
                           sizes.global,
                           sizes.micro,
                           sizes.accumulation,
                           ranks,
                           product),
               batch_fix(config, sizes, ranks));
  return std::nullopt;
}

namespace {

/// True if the folder `outer` is `inner`, or contains it.
bool is_around(const std::filesystem::path& outer, const std::filesystem::path& inner) {
  const auto below = inner.lexically_normal().lexically_relative(outer);
  return !below.empty() && *below.begin() != "..";
}

/// Why no run can have this folder; nothing if one can. What a run writes into it has names of up
/// to 256 bytes below the folder's.
std::optional<std::string> obstacle_of_run_dir(const std::string& dir) {
  constexpr std::size_t kBelow = 256, kLongestName = 255, kLongestPath = 4096;
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path whole = fs::absolute(dir, unknown).lexically_normal();
  if (dir.empty() || unknown) return std::nullopt;
  if (dir == "~" || dir.starts_with("~/"))
    return "begins with ~, which only shells replace by the home folder";
  constexpr const char* kNotItsOwn = ", and a run writes, moves and removes what is in its folder";
  if (whole == whole.root_path()) return std::string("is the root of the file system") + kNotItsOwn;
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home == '/' && is_around(whole, home))
    return std::string("is the home folder, or a folder around it") + kNotItsOwn;
  for (const fs::path& part : whole) {
    if (part.native().size() > kLongestName)
      return fmt::format("has a name of {} bytes: file systems have names of up to {}",
                         part.native().size(),
                         kLongestName);
  }
  if (whole.native().size() + kBelow > kLongestPath)
    return fmt::format("has {} bytes: the files of a run need a path of up to {}",
                       whole.native().size(),
                       kLongestPath - kBelow);
  return std::nullopt;
}

}  // namespace

void check_config(const TrainConfig& config,
                  int ranks,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const auto add = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (ranks < 1 || ranks > kMostRanks) {
    problems.add({"-n"},
                 "",
                 fmt::format("{} ranks: expected 1 to {}", ranks, kMostRanks),
                 ranks < 1 ? "use -n 2"
                           : "use fewer slots of each host, and more threads for each rank: "
                             "--num_gpus 4 --set run.threads_per_rank=16");
  }
  if (config.checkpoint.peer_copies > 0 && config.run.most_restarts() == 0) {
    add("checkpoint.peer_copies",
        "copies in memory serve a job that goes on by itself after a loss, and this one does not",
        "set run.min_hosts or run.restarts, or remove the key");
  }
  if (const auto wrong = obstacle_of_run_dir(config.run.dir))
    add("run.dir", *wrong, "name a folder of the run's own, such as runs/my");
  const json::Value& hosts = config.run.hosts;
  const bool listed = hosts.is_array() && !hosts.items().empty() &&
                      std::all_of(hosts.items().begin(),
                                  hosts.items().end(),
                                  [](const json::Value& line) { return line.is_string(); });
  if (!hosts.is_null() && !hosts.is_string() && !listed) {
    add("run.hosts",
        "is neither the path of a hostfile nor a list of its lines",
        R"(write ["node-0 slots=4", "node-1 slots=4"])");
  }
  const std::int64_t unit = config.parallel.ranks_per_model();
  if (parallel::sizes_are_known(problems) && ranks % unit == 0)
    parallel::check_shard_group(
        config.zero_optimization, static_cast<int>(ranks / unit), problems, origins);
  const DType sums = type_of_sums(config);
  if (config.communication_data_type != DType::F32 && sums != DType::F32 &&
      sums != config.communication_data_type) {
    add("communication_data_type",
        fmt::format("{} does not go with sums in {}, which travel as they are",
                    config::name_of(kGradientTypes, config.communication_data_type),
                    config::name_of(kCommunicationTypes, sums)),
        fmt::format("set it to \"{}\", or data_types.grad_accum_dtype to \"fp32\"",
                    config::name_of(kCommunicationTypes, sums)));
  }
  if (config.zero_optimization.zero_quantized_gradients.value_or(false) && sums != DType::F32) {
    add("zero_optimization.zero_quantized_gradients",
        fmt::format("needs sums in fp32, and they are in {}",
                    config::name_of(kCommunicationTypes, sums)),
        "set data_types.grad_accum_dtype to \"fp32\", or remove the key");
  }
  if (config.data.train.empty() && origins.given("data.train") && !problems.concern("data.train")) {
    add("data.train",
        "names nothing",
        "name a .txt, .jsonl, folder or .bin/.idx pair: \"data\": {\"train\": \"my.txt\"}");
  }
  if (!config.data.validation.empty() && config.data.validation_fraction > 0) {
    add("data.validation_fraction",
        "data.validation is given as well: two sources of validation data",
        "remove one of the two");
  }
  const bool validation = !config.data.validation.empty() || config.data.holds_out() ||
                          problems.concern("data.validation") ||
                          problems.concern("data.validation_fraction");
  tasks::check_eval(config.eval, problems, origins);
  config.sections.check(problems, origins);
  config::check_cadence(config.checkpoint.every, "checkpoint.every", problems);
  if (config.eval.when().any() && !validation) {
    add("eval.every",
        "there is nothing to evaluate on: neither data.validation nor data.validation_fraction is "
        "given",
        "add \"validation_fraction\": 0.1 to data, or set eval.every to 0");
  }
  if (config.eval.test_when().any() && config.data.test.empty() && !problems.concern("data.test")) {
    add("eval.test_every",
        "there is nothing to test on: data.test is not given",
        "set data.test, or remove eval.test_every");
  }
  if (config.checkpoint.keeps_best() && !config.eval.when().any()) {
    add("checkpoint.best",
        "there is no best one without evaluations: eval.every is 0",
        "set eval.every, or remove checkpoint.best");
  }
  if (!config.eval.best.is_null() && !config.checkpoint.best.value_or(true) &&
      !config.eval.stops_early()) {
    add("eval.best",
        "has no effect: checkpoint.best is false, and there is no eval.patience",
        "set checkpoint.best to true, or remove eval.best");
  }
  if (!config.data.pack && config.data.stride) {
    add("data.stride", "has no meaning without packing: every document is one sample", "remove it");
  }
  if (!config.data.pack && config.data.separate_documents) {
    add("data.separate_documents",
        "has no meaning without packing: every document is one sample",
        "remove it, or set data.pack to true");
  }
  check_exchange(config, problems, origins);
  if (config.zero_optimization.zeropp_loco_param.on()) {
    const DType travel = config.gradient_travel();
    parallel::check_feedback(config.parallel,
                             config.optimizer,
                             travel == DType::U8 ? "" : config::name_of(kGradientTypes, travel),
                             problems,
                             origins);
  }
  parallel::check_offload(offload_choice(config), problems, origins);
  check_early_updates(config, problems, origins);
  check_device(config, problems, origins);
}

namespace {

// A note about keys that only stage 3 uses, in another stage.
std::optional<std::string> idle_keys_note(const TrainConfig& config,
                                          const config::Origins& origins) {
  const parallel::ZeroOptions& zero = config.zero_optimization;
  if (zero.stage.value_or(0) == 3) return std::nullopt;
  std::vector<std::string> idle;
  // A file may spell out DeepSpeed's defaults.
  const auto look = [&](const char* key,
                        const std::optional<std::int64_t>& value,
                        std::int64_t standard = std::numeric_limits<std::int64_t>::max()) {
    const std::string path = json::join_path("zero_optimization", key);
    if (origins.given(path) && value && *value != standard) idle.push_back(path);
  };
  look("stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size, 50'000'000);
  look("stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold, 100'000);
  look("stage3_model_persistence_threshold", zero.stage3_model_persistence_threshold);
  look("stage3_max_live_parameters", zero.stage3_max_live_parameters, 1'000'000'000);
  look("stage3_max_reuse_distance", zero.stage3_max_reuse_distance, 1'000'000'000);
  if (idle.empty()) return std::nullopt;
  return fmt::format("zero_optimization.stage is {}: stage 3 alone reads {}",
                     zero.stage.value_or(0),
                     text::join(idle, ", "));
}

}  // namespace

std::vector<std::string> config_notes(const TrainConfig& config, const config::Origins& origins) {
  const parallel::ZeroOptions& zero = config.zero_optimization;
  std::vector<std::string> out;
  if (zero.stage.value_or(0) == 1 && optim::exchange_needs(config.optimizer).local_weights) {
    out.push_back(
        fmt::format("zero_optimization.stage 1 runs as stage 0: {} moves all weights on every rank "
                    "between exchanges, so that there is nothing to shard",
                    config.optimizer.type));
  }
  for (std::string& note : parallel::offload_notes(offload_choice(config)))
    out.push_back(std::move(note));
  if (std::optional<std::string> note = early_updates_note(config)) out.push_back(*note);
  for (std::string& note : optim::optimizer_notes(config.optimizer))
    out.push_back(std::move(note));
  for (std::string& note : optim::schedule_notes(config.scheduler, config.optimizer))
    out.push_back(std::move(note));
  if (auto note = idle_keys_note(config, origins)) out.push_back(std::move(*note));
  for (std::string& note : idle_key_notes(config, origins))
    out.push_back(std::move(note));
  if (config.parallel.sequence && config.parallel.tensor.size == 1)
    out.emplace_back("parallel.sequence has no effect: parallel.tensor.size is 1");
  const bool narrow_sums = type_of_sums(config) != DType::F32;
  const bool narrow = config.communication_data_type != DType::F32;
  if (config.sparse_gradients && (narrow || narrow_sums)) {
    out.push_back(fmt::format(
        "{} is narrower than fp32: sparse_gradients has no effect, gradients travel whole",
        narrow ? "communication_data_type" : "data_types.grad_accum_dtype"));
  }
  return out;
}

void check_model(const TrainConfig& config,
                 const models::Resolved& model,
                 config::Problems& problems,
                 const config::Origins& origins) {
  if (!config.eval.when().any() || config.eval.prompt.empty()) return;
  // A program's own model has an objective without a name.
  const std::string& objective = model.objective.name;
  if (!objective.empty() && !models::continues_texts(objective)) {
    problems.add(origins.place("eval.prompt"),
                 "eval.prompt",
                 fmt::format("a model with the objective {} does not generate text", objective),
                 "remove eval.prompt");
  }
  if (config.eval.top_k > model.vocab_size) {
    problems.add(
        origins.place("eval.top_k"),
        "eval.top_k",
        fmt::format("{} is more than the vocabulary of {}", config.eval.top_k, model.vocab_size),
        "use 0 for all tokens");
  }
}

}  // namespace tessera::planner
