// SPDX-License-Identifier: Apache-2.0
// The sections `zero_optimization` and `activation_checkpointing`: what is sharded over
// data-parallel ranks, and what is computed again in the backward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/config/disk_keys.h"
#include "tessera/config/fields.h"

namespace tessera::parallel {

using config::OffloadDevice;
using config::ParamOffloadKeys;
/// The place where inputs of recomputed blocks rest until the backward pass, in the notation of
/// DeepSpeed's other sections.
struct ActivationOffloadKeys {
  std::optional<OffloadDevice> device;
  std::string nvme_path;
  std::optional<std::int64_t> buffer_count;
  [[nodiscard]] bool to_disk() const { return device == OffloadDevice::Nvme; }
  void describe(config::Fields& fields);
};
enum class RecomputeKind : std::uint8_t { None, Full, Selective, Auto };
struct RecomputeOptions {
  std::optional<bool> enabled;
  std::optional<RecomputeKind> granularity;
  std::int64_t every_n = 1;
  bool partition_activations = false, cpu_checkpointing = false;
  ActivationOffloadKeys offload;
  /// The parts that are recomputed: `granularity`, or what `enabled` implies.
  [[nodiscard]] RecomputeKind kind() const {
    return granularity.value_or(enabled.value_or(false) ? RecomputeKind::Full
                                                        : RecomputeKind::None);
  }
  /// True if all blocks are recomputed, so that their inputs can rest elsewhere.
  [[nodiscard]] bool whole() const { return kind() == RecomputeKind::Full && every_n == 1; }
  /// True if the inputs of recomputed blocks are asked to be in the memory of the host.
  [[nodiscard]] bool to_host() const {
    return !offload.to_disk() && (cpu_checkpointing || offload.device == OffloadDevice::Cpu);
  }
  void describe(config::Fields& fields);
};
/// Error feedback of gradients in 8 bits, in DeepSpeed's notation of LoCo.
struct FeedbackKeys {
  std::optional<double> err_beta;
  std::optional<std::int64_t> reset_T;
  [[nodiscard]] bool on() const { return err_beta || reset_T; }
  void describe(config::Fields& fields);
};
/// The place where fp32 masters and states of the optimizer rest between updates, in DeepSpeed's
/// notation.
struct OffloadKeys {
  std::optional<OffloadDevice> device;
  std::string nvme_path;
  std::optional<std::int64_t> buffer_count;
  std::optional<bool> pipeline_read, pipeline_write;
  std::optional<double> ratio;
  std::optional<bool> gradients;
  bool super_offload = false;  ///< StatePlace::early_updates
  [[nodiscard]] bool to_disk() const { return device == OffloadDevice::Nvme; }
  /// Number of units that are in memory at a time.
  [[nodiscard]] int buffers() const;
  void describe(config::Fields& fields);
};
struct ZeroOptions {
  std::optional<std::int64_t> stage;
  std::optional<std::int64_t> reduce_bucket_size;
  std::optional<std::int64_t> stage3_prefetch_bucket_size, stage3_param_persistence_threshold,
      stage3_model_persistence_threshold, stage3_max_live_parameters, stage3_max_reuse_distance;
  std::optional<std::int64_t> zero_hpz_partition_size, mics_shard_size;
  std::optional<bool> zero_quantized_weights, zero_quantized_nontrainable_weights,
      zero_quantized_gradients;
  FeedbackKeys zeropp_loco_param;
  OffloadKeys offload_optimizer;
  ParamOffloadKeys offload_param;
  std::optional<std::int64_t> sub_group_size;
  /// Number of ranks that together hold the working weights; absent: all.
  [[nodiscard]] std::optional<std::int64_t> group() const;
  void describe(config::Fields& fields);
};

}  // namespace tessera::parallel
