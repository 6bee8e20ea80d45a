// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/offload_rules.h"

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

namespace tessera::parallel {
namespace {

// Masters and states on a disk.
void check_states(const OffloadChoice& choice,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const OffloadKeys& offload = choice.zero.offload_optimizer;
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
  if (optim::exchange_needs(choice.optimizer).compressed) {
    add(device,
        fmt::format("\"nvme\" does not go with {}, whose states stay in memory",
                    choice.optimizer.type),
        "set it to \"none\", or use AdamW");
  }
  if (offload.gradients.value_or(false) && choice.once && choice.zero.stage.value_or(0) < 2) {
    add("zero_optimization.offload_optimizer.gradients",
        "does not go with gradient_reduction \"once\" in stage 1, in which each rank sums whole "
        "gradients, which the others read",
        "set zero_optimization.stage to 2 or 3, or gradient_reduction to \"each\"");
  }
}

// Working weights on a disk.
void check_weights(const OffloadChoice& choice,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const ZeroOptions& zero = choice.zero;
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
void check_activations(const OffloadChoice& choice,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const RecomputeOptions& recompute = choice.recompute;
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const bool whole = recompute.kind() == RecomputeKind::Full && recompute.every_n == 1;
  const char* const fix = "set activation_checkpointing.granularity to \"full\", and every_n to 1";
  // Without any recomputation, a note says that the key has no effect.
  const bool some = recompute.kind() != RecomputeKind::None;
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

std::optional<StateOffload> states_on_disk(ZeroOptions& options) {
  OffloadKeys& keys = options.offload_optimizer;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  keys.nvme_path = std::filesystem::absolute(keys.nvme_path).string();
  StateOffload out{.folder = keys.nvme_path,
                   .buffers = keys.buffers(),
                   .share = keys.ratio.value_or(1),
                   .gradients = keys.gradients.value_or(false)};
  out.unit_elements = std::max(options.sub_group_size.value_or(out.unit_elements), kChunk);
  return out;
}

std::optional<WeightOffload> weights_on_disk(ZeroOptions& options) {
  ParamOffloadKeys& keys = options.offload_param;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  WeightOffload out = weight_offload_of(keys);
  keys.nvme_path = out.folder;
  return out;
}

std::optional<ActivationOffload> activations_on_disk(RecomputeOptions& options) {
  ActivationOffloadKeys& keys = options.offload;
  if (!keys.to_disk() || keys.nvme_path.empty()) return std::nullopt;
  keys.nvme_path = std::filesystem::absolute(keys.nvme_path).string();
  ActivationOffload out{.folder = keys.nvme_path};
  out.buffers = static_cast<int>(keys.buffer_count.value_or(out.buffers));
  return out;
}

}  // namespace

WeightOffload weight_offload_of(const ParamOffloadKeys& keys) {
  WeightOffload out{.folder = std::filesystem::absolute(keys.nvme_path).string()};
  out.buffers = static_cast<int>(keys.buffer_count.value_or(out.buffers));
  out.in_memory = keys.max_in_cpu.value_or(0);
  return out;
}

RestingPlaces complete_offload(ZeroOptions& zero, RecomputeOptions& recompute) {
  return {states_on_disk(zero), weights_on_disk(zero), activations_on_disk(recompute)};
}

void check_offload(const OffloadChoice& choice,
                   config::Problems& problems,
                   const config::Origins& origins) {
  check_states(choice, problems, origins);
  check_weights(choice, problems, origins);
  check_activations(choice, problems, origins);
}

void check_offload_on_device(const OffloadChoice& choice,
                             const std::string& on,
                             config::Problems& problems,
                             const config::Origins& origins) {
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const ZeroOptions& zero = choice.zero;
  if (zero.offload_optimizer.to_disk())
    add("zero_optimization.offload_optimizer.device",
        on + ": masters and states on a disk",
        "set it to \"cpu\", which is the host's memory, or to \"none\"");
  if (zero.offload_optimizer.device == OffloadDevice::Cpu && choice.bf16_masters)
    add("zero_optimization.offload_optimizer.device",
        "\"cpu\" needs fp32 masters",
        "set bf16.bf16_master_weights_and_grads to false, or this to \"none\"");
  if (zero.offload_param.device.value_or(OffloadDevice::None) != OffloadDevice::None)
    add("zero_optimization.offload_param.device",
        on + ": weights outside of its memory",
        "set it to \"none\"");
  const RecomputeOptions& recompute = choice.recompute;
  if (recompute.offload.device.value_or(OffloadDevice::None) != OffloadDevice::None)
    add("activation_checkpointing.offload.device",
        on + ": activations outside of its memory",
        "set it to \"none\"");
  if (recompute.cpu_checkpointing)
    add("activation_checkpointing.cpu_checkpointing",
        on + ": activations outside of its memory",
        "set it to false");
}

std::vector<std::string> offload_notes(const OffloadChoice& choice) {
  const ZeroOptions& zero = choice.zero;
  std::vector<std::string> out;
  if (zero.offload_optimizer.device == OffloadDevice::Cpu &&
      memory::device_kind(choice.device) == DeviceKind::Cpu) {
    out.emplace_back(
        "zero_optimization.offload_optimizer.device \"cpu\" has no effect here: ranks compute on "
        "the CPU, so the data is already in host memory; \"nvme\" needs less of it");
  }
  if (zero.offload_param.device == OffloadDevice::Cpu) {
    out.emplace_back(
        "zero_optimization.offload_param.device \"cpu\" has no effect here: ranks compute on the "
        "CPU, so the weights are already in host memory; \"nvme\" needs less of it");
  }
  const RecomputeOptions& recompute = choice.recompute;
  if (recompute.offload.device == OffloadDevice::Cpu || recompute.cpu_checkpointing) {
    out.push_back(fmt::format(
        "activation_checkpointing.{} has no effect here: ranks compute on the CPU, so the "
        "activations are already in host memory; offload.device \"nvme\" needs less of it",
        recompute.cpu_checkpointing ? "cpu_checkpointing" : "offload.device \"cpu\""));
  }
  const bool recomputes = recompute.kind() != RecomputeKind::None;
  if (recompute.partition_activations &&
      (!recomputes || choice.parallel.tensor.size == 1 || choice.parallel.sequence ||
       choice.parallel.tensor.layout() != TensorLayout::OneD)) {
    out.push_back(fmt::format("activation_checkpointing.partition_activations has no effect: {}",
                              !recomputes ? "nothing is recomputed"
                              : choice.parallel.tensor.size == 1
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

}  // namespace tessera::parallel
