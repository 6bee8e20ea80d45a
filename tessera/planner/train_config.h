// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a training run: every section's options, and the plan to which they
// resolve.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/inputs.h"
#include "tessera/checkpoint/options.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/sections.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_dataset.h"
#include "tessera/models/adapter.h"
#include "tessera/models/distillation.h"
#include "tessera/models/family.h"
#include "tessera/optim/average.h"
#include "tessera/optim/batch_ramp.h"
#include "tessera/optim/decay_ramp.h"
#include "tessera/optim/loss_scale.h"
#include "tessera/optim/options.h"
#include "tessera/optim/rule.h"
#include "tessera/optim/schedule.h"
#include "tessera/parallel/elastic_batch.h"
#include "tessera/parallel/freezing.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/param_groups.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/zero_options.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/task.h"
#include "tessera/text/tokenizer.h"

namespace tessera::planner {

struct TrainerOptions {
  std::optional<std::int64_t> max_steps;
  std::optional<double> epochs;
  std::int64_t seed = 1234;
  optim::OnNonfinite on_nonfinite = optim::OnNonfinite::Stop;
  bool clip_after_warmup = false;
  optim::AverageOptions ema;
  void describe(config::Fields& fields);
};
/// DeepSpeed's number of restarts of an elastic training.
inline constexpr std::int64_t kElasticRestarts = 100;
struct RunOptions {
  std::string dir;  ///< empty: runs/<name of the file>
  std::optional<std::int64_t> threads_per_rank;
  json::Value hosts;               ///< path of a hostfile, or its lines as a list; null: this host
  std::string transport = "auto";  ///< comm::link_choices()
  /// Number of times that the job goes on by itself after it lost a rank or a host. Absent: 0, or
  /// kElasticRestarts if min_hosts is given.
  std::optional<std::int64_t> restarts;
  /// Bounds of the hosts on which an elastic training goes on; absent: all hosts of the hostfile.
  std::optional<std::int64_t> min_hosts, max_hosts;
  [[nodiscard]] bool elastic() const { return min_hosts.has_value(); }
  [[nodiscard]] int most_restarts() const {
    return static_cast<int>(restarts.value_or(elastic() ? kElasticRestarts : 0));
  }
  std::vector<std::string> derived;  ///< in a resolved configuration: see make_plan()
  void describe(config::Fields& fields);
};
struct Bf16Options {
  bool enabled = false;
  bool bf16_master_weights_and_grads = false, bf16_optimizer_states = false;
  void describe(config::Fields& fields);
};
/// Apex's names of optimization levels.
enum class AmpLevel : std::uint8_t { O0, O1, O2, O3 };
inline constexpr auto kAmpLevels = std::to_array<config::Named<AmpLevel>>(
    {{AmpLevel::O0, "O0"}, {AmpLevel::O1, "O1"}, {AmpLevel::O2, "O2"}, {AmpLevel::O3, "O3"}});
struct AmpOptions {
  bool enabled = false;
  AmpLevel opt_level = AmpLevel::O1;
  json::Value loss_scale;  ///< "dynamic" or a number
  void describe(config::Fields& fields);
};
/// PyTorch's autocast, in DeepSpeed's notation.
struct TorchAutocastOptions {
  bool enabled = false;
  DType dtype = DType::BF16;
  void describe(config::Fields& fields);
};
/// Names of the dtypes in which gradients are communicated and accumulated.
inline constexpr auto kCommunicationTypes = std::to_array<config::Named<DType>>(
    {{DType::F32, "fp32"}, {DType::BF16, "bf16"}, {DType::F16, "fp16"}});
/// Names of the dtypes in which gradients are communicated; U8 stands for codes (byte_codes.h).
inline constexpr auto kGradientTypes = std::to_array<config::Named<DType>>(
    {{DType::F32, "fp32"}, {DType::BF16, "bf16"}, {DType::F16, "fp16"}, {DType::U8, "int8"}});
struct DataTypesOptions {
  std::optional<DType> grad_accum_dtype;
  void describe(config::Fields& fields);
};
/// The configuration as written, completed with defaults.
struct TrainConfig {
  models::ModelOptions model;
  tasks::TaskOptions task;
  models::AdapterOptions adapter;
  models::DistillOptions distill;
  text::TokenizerOptions tokenizer;
  data::DataOptions data;
  std::optional<std::int64_t> train_batch_size, train_micro_batch_size_per_gpu,
      gradient_accumulation_steps;
  json::Value rampup_batch_size;
  optim::OptimizerOptions optimizer;
  optim::SchedulerOptions scheduler;
  double gradient_clipping = 0.0;
  double gradient_clip_value = 0.0;
  optim::Fp16Options fp16;
  Bf16Options bf16;
  AmpOptions amp;
  TorchAutocastOptions torch_autocast;
  DataTypesOptions data_types;
  parallel::ZeroOptions zero_optimization;
  parallel::ParallelOptions parallel;
  parallel::RecomputeOptions activation_checkpointing;
  parallel::Reduction gradient_reduction = parallel::Reduction::Each;
  DType communication_data_type = DType::F32;
  /// The dtype that this key or zero_quantized_gradients asks for; U8 stands for codes.
  [[nodiscard]] DType gradient_travel() const {
    return zero_optimization.zero_quantized_gradients.value_or(false) ? DType::U8
                                                                      : communication_data_type;
  }
  bool sparse_gradients = false;
  TrainerOptions trainer;
  std::int64_t steps_per_print = 10;
  tasks::EvalOptions eval;
  checkpoint::Options checkpoint;
  RunOptions run;
  parallel::ElasticityOptions elasticity;
  bool wall_clock_breakdown = false, memory_breakdown = false;
  config::Sections sections;  ///< registered by their owners, such as monitors
  void describe(config::Fields& fields);
};

/// A learning-rate curve that a resumed training follows instead of that of its own options.
struct Curve {
  std::string type;  ///< as scheduler.type and .params
  json::Value params;
  std::int64_t start = 0;   ///< the step after which the curve begins
  std::int64_t length = 0;  ///< steps of the curve, which a schedule takes for trainer.max_steps
};

class ProbeCache;
std::shared_ptr<ProbeCache> make_probe_cache();

/// Everything that a rank needs, checked and with every number resolved. Made before any rank
/// starts; pure except for reading files. It contains its layout as a base, whose numbers are read
/// as members of the plan.
struct Plan : parallel::Layout {
  TrainConfig config;
  json::Value resolved;  ///< config.json of the run folder: every key with its value
  models::Resolved model;
  /// The adapter of the section `adapter`; nullptr: there is none, and the whole model is trained.
  std::shared_ptr<const models::Adapter> adapter;
  std::optional<models::Resolved> base;  ///< the model without the adapter
  /// Fingerprint of the base's weights, which checkpoints store instead of the weights; empty if
  /// they contain the weights.
  std::string base_fingerprint;
  std::shared_ptr<const tasks::Task> task;  ///< how data becomes samples
  text::TokenizerPtr tokenizer;
  std::string run_dir;
  std::int64_t sequence_length = 0;
  /// The tensors of every sample: by the task, and once the data is open, by the data.
  std::vector<data::TensorSpec> sample;
  int ranks = 1;  ///< mesh().size(), or the number that was asked for while the layout is unknown
  std::int64_t global_batch = 0;
  std::optional<optim::BatchRamp> batch_ramp;  ///< how the global batch grows to global_batch
  optim::Fp16Options scaling;                  ///< loss scaling, if `working` is fp16
  int scaling_stage = 1;                       ///< ZeRO stage for DeepSpeed's loss scaler rule
  parallel::ParameterRules rules;              ///< what the parameters need of their buffers
  std::vector<parallel::ParamGroup> param_groups;
  parallel::FreezeSchedule freezing;  ///< of parameters that are trained in a part of the training
  bool save_in_background = true;     ///< checkpoints are written in the background
  std::int64_t max_steps = 0;         ///< known once the data is open; 0 before
  std::optional<Curve> curve;         ///< by scheduler.on_resume, once the checkpoint is known
  models::WeightSource weights;       ///< of model.from; empty: initialized from the seed
  std::vector<Input> inputs;          ///< the files that decide the result, apart from the data
  std::vector<std::string>
      notes;  ///< notes for the user, shown once: keys without an effect, oversubscribed cores
  bool quiet = false;
  /// Bytes per rank that a training needs besides its model: for other models and caches.
  std::int64_t beside = 0;
  std::int64_t traveling = 0;  ///< bytes per rank of buffers between hosts (planner/travel.h)
  /// Measured memory needs of the model's blocks (activations.h).
  std::shared_ptr<ProbeCache> probes = make_probe_cache();
  [[nodiscard]] const parallel::Layout& layout() const { return *this; }
  /// How the working weights of the model are distributed.
  [[nodiscard]] parallel::WeightOptions weight_options() const {
    return Layout::weight_options(rules);
  }
};

/// Reads and checks a whole configuration for `ranks` ranks and throws all problems together as one
/// Error{Config}. Does not open data. A resolved configuration gives the same plan again, also for
/// another number of ranks: values listed in run.derived are derived again, except for a
/// micro-batch size that still divides the batch. Changes of that kind are noted.
Plan make_plan(const json::Value& source, int ranks, const std::string& name_of_file);
/// The same for a program's own model instead of the section `model`: its blocks are sharded,
/// recomputed, kept in 16 bits and saved as configured. Memory for its activations is predicted
/// once the data is open.
Plan make_plan(const json::Value& source,
               int ranks,
               const std::string& name_of_file,
               const nn::Model& model);
/// optimizer.type/params and scheduler.type/params of a plan whose max_steps is known.
std::unique_ptr<optim::Rule> make_rule(const Plan& plan);
/// `rule`: the result of make_rule().
std::unique_ptr<optim::Schedule> make_schedule(const Plan& plan, const optim::Rule& rule);
/// The global batch of the update that begins after `consumed` samples; empty if it never changes.
std::function<std::int64_t(std::int64_t consumed)> batch_sizes(const Plan& plan);
/// optimizer.weight_decay_schedule of a plan whose max_steps is known.
optim::DecayRamp make_decay_ramp(const Plan& plan);

}  // namespace tessera::planner
