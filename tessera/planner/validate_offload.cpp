// SPDX-License-Identifier: Apache-2.0
// The rules about what rests outside of working memory: masters and states, weights, activations.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/memory/device.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/planner/offload.h"
#include "tessera/planner/validate.h"

namespace tessera::planner {
namespace {

// Masters and states on a disk.
void check_states(const TrainConfig& config,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const parallel::OffloadKeys& offload = config.zero_optimization.offload_optimizer;
  if (!offload.to_disk()) return;
  const char* const device = "zero_optimization.offload_optimizer.device";
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  if (offload.nvme_path.empty()) {
    add("zero_optimization.offload_optimizer.nvme_path",
        "is missing, and offload_optimizer.device is \"nvme\"",
        "set it to a folder on a disk");
  }
  if (optim::exchange_needs(config.optimizer).compressed) {
    add(device,
        fmt::format("\"nvme\" does not go with {}, whose states stay in memory",
                    config.optimizer.type),
        "set it to \"none\", or use AdamW");
  }
}

// Working weights on a disk.
void check_weights(const TrainConfig& config,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const parallel::ZeroOptions& zero = config.zero_optimization;
  if (!zero.offload_param.to_disk()) return;
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  if (zero.offload_param.nvme_path.empty()) {
    add("zero_optimization.offload_param.nvme_path",
        "is missing, and offload_param.device is \"nvme\"",
        "set it to a folder on a disk");
  }
  const char* const device = "zero_optimization.offload_param.device";
  const char* const exact =
      "\"nvme\" does not go with {}: what rests on the disk is a rank's own "
      "part, which is sent to all ranks as it is";
  for (const auto& [key, on] :
       {std::pair("zero_quantized_weights", zero.zero_quantized_weights.value_or(false)),
        std::pair("zero_quantized_nontrainable_weights",
                  zero.zero_quantized_nontrainable_weights.value_or(false)),
        std::pair("zero_hpz_partition_size", zero.zero_hpz_partition_size.value_or(1) > 1),
        std::pair("mics_shard_size", zero.mics_shard_size.value_or(-1) > 0)}) {
    if (on) add(device, fmt::format(fmt::runtime(exact), key), fmt::format("remove {}", key));
  }
}

// Inputs of recomputed blocks on a disk.
void check_activations(const TrainConfig& config,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const parallel::RecomputeOptions& recompute = config.activation_checkpointing;
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const bool whole = recompute.kind() == parallel::RecomputeKind::Full && recompute.every_n == 1;
  const char* const fix = "set activation_checkpointing.granularity to \"full\", and every_n to 1";
  // Without any recomputation, a note says that the key has no effect.
  const bool some = recompute.kind() != parallel::RecomputeKind::None;
  if (recompute.partition_activations && some && !whole) {
    add("activation_checkpointing.partition_activations",
        "needs recomputation of all blocks, whose inputs are divided",
        fix);
  }
  if (!recompute.offload.to_disk()) return;
  if (recompute.offload.nvme_path.empty()) {
    add("activation_checkpointing.offload.nvme_path",
        "is missing, and activation_checkpointing.offload.device is \"nvme\"",
        "set it to a folder on a disk");
  }
  if (!whole) {
    add("activation_checkpointing.offload.device",
        "\"nvme\" needs recomputation of all blocks, whose inputs rest on the disk",
        fix);
  }
}

}  // namespace

void check_offload(const TrainConfig& config,
                   config::Problems& problems,
                   const config::Origins& origins) {
  check_states(config, problems, origins);
  check_weights(config, problems, origins);
  check_activations(config, problems, origins);
}

void check_offload_on_device(const TrainConfig& config,
                             const std::string& on,
                             config::Problems& problems,
                             const config::Origins& origins) {
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const parallel::ZeroOptions& zero = config.zero_optimization;
  using parallel::OffloadDevice;
  if (zero.offload_optimizer.device.value_or(OffloadDevice::None) != OffloadDevice::None)
    add("zero_optimization.offload_optimizer.device",
        on + ": masters and states outside of its memory",
        "set it to \"none\", and zero_optimization.stage to 1 or more");
  if (zero.offload_param.device.value_or(OffloadDevice::None) != OffloadDevice::None)
    add("zero_optimization.offload_param.device",
        on + ": weights outside of its memory",
        "set it to \"none\"");
  const parallel::RecomputeOptions& recompute = config.activation_checkpointing;
  if (recompute.offload.device.value_or(OffloadDevice::None) != OffloadDevice::None)
    add("activation_checkpointing.offload.device",
        on + ": activations outside of its memory",
        "set it to \"none\"");
  if (recompute.cpu_checkpointing)
    add("activation_checkpointing.cpu_checkpointing",
        on + ": activations outside of its memory",
        "set it to false");
}

std::optional<parallel::StateOffload> complete_offload(parallel::ZeroOptions& options) {
  parallel::OffloadKeys& keys = options.offload_optimizer;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  keys.nvme_path = std::filesystem::absolute(keys.nvme_path).string();
  parallel::StateOffload out{
      .folder = keys.nvme_path, .buffers = keys.buffers(), .share = keys.ratio.value_or(1)};
  out.unit_elements = std::max(options.sub_group_size.value_or(out.unit_elements), kChunk);
  return out;
}

std::optional<parallel::WeightOffload> complete_weight_offload(parallel::ZeroOptions& options) {
  parallel::ParamOffloadKeys& keys = options.offload_param;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  parallel::WeightOffload out = weight_offload_of(keys);
  keys.nvme_path = out.folder;
  return out;
}

std::optional<parallel::ActivationOffload> complete_activation_offload(
    parallel::RecomputeOptions& options) {
  parallel::ActivationOffloadKeys& keys = options.offload;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  keys.nvme_path = std::filesystem::absolute(keys.nvme_path).string();
  parallel::ActivationOffload out{.folder = keys.nvme_path};
  out.buffers = static_cast<int>(keys.buffer_count.value_or(out.buffers));
  return out;
}

std::vector<std::string> offload_notes(const TrainConfig& config) {
  const parallel::ZeroOptions& zero = config.zero_optimization;
  std::vector<std::string> out;
  if (zero.offload_optimizer.device == parallel::OffloadDevice::Cpu &&
      memory::device_kind(config.run.device) == DeviceKind::Cpu) {
    out.emplace_back(
        "zero_optimization.offload_optimizer.device \"cpu\" has no effect here: ranks compute on "
        "the CPU, so the data is already in host memory; \"nvme\" needs less of it");
  }
  if (zero.offload_param.device == parallel::OffloadDevice::Cpu) {
    out.emplace_back(
        "zero_optimization.offload_param.device \"cpu\" has no effect here: ranks compute on the "
        "CPU, so the weights are already in host memory; \"nvme\" needs less of it");
  }
  const parallel::RecomputeOptions& recompute = config.activation_checkpointing;
  if (recompute.offload.device == parallel::OffloadDevice::Cpu || recompute.cpu_checkpointing) {
    out.push_back(fmt::format(
        "activation_checkpointing.{} has no effect here: ranks compute on the CPU, so the "
        "activations are already in host memory; offload.device \"nvme\" needs less of it",
        recompute.cpu_checkpointing ? "cpu_checkpointing" : "offload.device \"cpu\""));
  }
  const bool recomputes = recompute.kind() != parallel::RecomputeKind::None;
  if (recompute.partition_activations &&
      (!recomputes || config.parallel.tensor.size == 1 || config.parallel.sequence ||
       config.parallel.tensor.layout() != parallel::TensorLayout::OneD)) {
    out.push_back(fmt::format("activation_checkpointing.partition_activations has no effect: {}",
                              !recomputes ? "nothing is recomputed"
                              : config.parallel.tensor.size == 1
                                  ? "parallel.tensor.size is 1"
                                  : "ranks keep different parts of the activations already"));
  }
  if (zero.offload_optimizer.to_disk() && zero.sub_group_size.value_or(kChunk) < kChunk) {
    out.push_back(
        fmt::format("zero_optimization.sub_group_size {} runs as {}, the smallest group "
                    "of elements whose squares are summed together",
                    *zero.sub_group_size,
                    kChunk));
  }
  return out;
}

}  // namespace tessera::planner
