// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/offload_rules.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/memory/device.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/shard_store.h"

namespace tessera::parallel {
namespace {

// True if ranks compute on a device, and `place` is the memory of its host.
bool on_host_of_device(const OffloadChoice& choice, const std::optional<OffloadDevice>& place) {
  return place == OffloadDevice::Cpu && choice.on_device();
}

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
  if (offload.gradients.value_or(false) && choice.on_device()) {
    add("zero_optimization.offload_optimizer.gradients",
        "not built yet on a GPU, where sums of gradients stay in its memory",
        "remove it");
  } else if (offload.gradients.value_or(false) && choice.once &&
             choice.zero.stage.value_or(0) < 2) {
    add("zero_optimization.offload_optimizer.gradients",
        "does not go with gradient_reduction \"once\" in stage 1, in which each rank sums whole "
        "gradients, which the others read",
        "set zero_optimization.stage to 2 or 3, or gradient_reduction to \"each\"");
  }
}

// Working weights on a disk, or in the memory of a device's host.
void check_weights(const OffloadChoice& choice,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const ZeroOptions& zero = choice.zero;
  const bool to_disk = zero.offload_param.to_disk();
  if (!to_disk && !on_host_of_device(choice, zero.offload_param.device)) return;
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  if (to_disk && zero.offload_param.nvme_path.empty()) {
    add("zero_optimization.offload_param.nvme_path",
        "is missing, and offload_param.device is \"nvme\"",
        "set it to a folder on a disk");
  }
  const char* const device = "zero_optimization.offload_param.device";
  const char* const exact =
      "\"{}\" does not go with {}: what rests there is a rank's own part, which is sent to all "
      "ranks as it is";
  for (const auto& [key, on] :
       {std::pair("zero_quantized_weights", zero.zero_quantized_weights.value_or(false)),
        std::pair("zero_quantized_nontrainable_weights",
                  zero.zero_quantized_nontrainable_weights.value_or(false)),
        std::pair("zero_hpz_partition_size", zero.zero_hpz_partition_size.value_or(1) > 1),
        std::pair("mics_shard_size", zero.mics_shard_size.value_or(-1) > 0)}) {
    if (on)
      add(device,
          fmt::format(fmt::runtime(exact), to_disk ? "nvme" : "cpu", key),
          fmt::format("remove {}", key));
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
  const bool whole = recompute.whole();
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

bool OffloadChoice::on_device() const {
  try {
    return memory::device_kind(device) != DeviceKind::Cpu;
  } catch (const Error&) {
    return false;
  }
}

HostPlaces host_places(const OffloadChoice& choice) {
  HostPlaces out;
  out.states = choice.zero.offload_optimizer.device == OffloadDevice::Cpu;
  if (!choice.on_device()) return out;
  out.weights =
      choice.zero.offload_param.device.value_or(OffloadDevice::None) != OffloadDevice::None;
  const RecomputeOptions& recompute = choice.recompute;
  if (recompute.to_host() && recompute.whole())
    out.activations =
        static_cast<int>(recompute.offload.buffer_count.value_or(ActivationOffload().buffers));
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
                             config::Problems& problems,
                             const config::Origins& origins) {
  const auto add = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  const ZeroOptions& zero = choice.zero;
  const auto moves = [](const std::optional<OffloadDevice>& device) {
    return device.value_or(OffloadDevice::None) != OffloadDevice::None;
  };
  // The update reads from the memory of one device and writes to that of another.
  for (const auto& [key, device] :
       {std::pair("zero_optimization.offload_optimizer.device", zero.offload_optimizer.device),
        std::pair("zero_optimization.offload_param.device", zero.offload_param.device)}) {
    if (moves(device) && choice.bf16_masters)
      add(key,
          fmt::format("\"{}\" needs fp32 masters on a device",
                      device == OffloadDevice::Cpu ? "cpu" : "nvme"),
          "set bf16.bf16_master_weights_and_grads to false, or this to \"none\"");
  }
  const RecomputeOptions& recompute = choice.recompute;
  if (recompute.to_host() && recompute.kind() != RecomputeKind::None && !recompute.whole())
    add(recompute.cpu_checkpointing ? "activation_checkpointing.cpu_checkpointing"
                                    : "activation_checkpointing.offload.device",
        "needs recomputation of all blocks, whose inputs are in the memory of the host",
        "set activation_checkpointing.granularity to \"full\", and every_n to 1");
}

std::vector<std::string> offload_notes(const OffloadChoice& choice) {
  const ZeroOptions& zero = choice.zero;
  std::vector<std::string> out;
  const bool on_device = choice.on_device();
  if (zero.offload_optimizer.device == OffloadDevice::Cpu && !on_device) {
    out.emplace_back(
        "zero_optimization.offload_optimizer.device \"cpu\" has no effect here: ranks compute on "
        "the CPU, so the data is already in host memory; \"nvme\" needs less of it");
  }
  if (zero.offload_param.device == OffloadDevice::Cpu && !on_device) {
    out.emplace_back(
        "zero_optimization.offload_param.device \"cpu\" has no effect here: ranks compute on the "
        "CPU, so the weights are already in host memory; \"nvme\" needs less of it");
  }
  const RecomputeOptions& recompute = choice.recompute;
  if (recompute.to_host()) {
    const char* const key =
        recompute.cpu_checkpointing ? "cpu_checkpointing" : "offload.device \"cpu\"";
    if (!on_device) {
      out.push_back(fmt::format(
          "activation_checkpointing.{} has no effect here: ranks compute on the CPU, so the "
          "activations are already in host memory; offload.device \"nvme\" needs less of it",
          key));
    } else if (recompute.kind() == RecomputeKind::None) {
      out.push_back(
          fmt::format("activation_checkpointing.{} has no effect: nothing is recomputed", key));
    }
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
