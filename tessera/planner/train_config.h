// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a training run: every section's options, in the order of
// docs/config.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tessera/base/dtype.h"
#include "tessera/checkpoint/options.h"
#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/config/sections.h"
#include "tessera/data/token_dataset.h"
#include "tessera/models/adapter.h"
#include "tessera/models/distillation.h"
#include "tessera/models/family.h"
#include "tessera/models/quantization_aware.h"
#include "tessera/optim/loss_scale.h"
#include "tessera/optim/options.h"
#include "tessera/optim/precision_options.h"
#include "tessera/optim/trainer_options.h"
#include "tessera/parallel/disk_options.h"
#include "tessera/parallel/elastic_batch.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/zero_options.h"
#include "tessera/planner/run_options.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/task.h"
#include "tessera/text/tokenizer.h"

namespace tessera::planner {

/// Names of the dtypes in which gradients are communicated and accumulated.
inline constexpr auto kCommunicationTypes = std::to_array<config::Named<DType>>(
    {{DType::F32, "fp32"}, {DType::BF16, "bf16"}, {DType::F16, "fp16"}});
/// Names of the dtypes in which gradients are communicated; U8 stands for codes (byte_codes.h).
inline constexpr auto kGradientTypes = std::to_array<config::Named<DType>>(
    {{DType::F32, "fp32"}, {DType::BF16, "bf16"}, {DType::F16, "fp16"}, {DType::U8, "int8"}});
/// The configuration as written, completed with defaults.
struct TrainConfig {
  models::ModelOptions model;
  tasks::TaskOptions task;
  models::AdapterOptions adapter;
  models::DistillOptions distill;
  models::QatOptions qat;
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
  optim::Bf16Options bf16;
  optim::AmpOptions amp;
  optim::TorchAutocastOptions torch_autocast;
  optim::DataTypesOptions data_types;
  parallel::ZeroOptions zero_optimization;
  parallel::DiskOptions aio;
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
  json::Value tiling;  ///< see parallel/tile_rules.h; null: no weight is divided
  optim::TrainerOptions trainer;
  tasks::EvalOptions eval;
  checkpoint::Options checkpoint;
  RunOptions run;
  parallel::ElasticityOptions elasticity;
  Printing printing;
  config::Sections sections;  ///< registered by their owners, such as monitors
  void describe(config::Fields& fields);
};

}  // namespace tessera::planner
