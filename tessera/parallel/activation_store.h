// SPDX-License-Identifier: Apache-2.0
// What recomputed blocks keep between their forward and their backward pass, outside of working
// memory or divided over tensor-parallel ranks. Sources: Rajbhandari et al. 2020, "ZeRO"
// (partitioned activation checkpointing) and 2021, "ZeRO-Infinity" (activations on NVMe).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::parallel {

/// Where the inputs of recomputed blocks rest.
struct ActivationOffload {
  std::string folder;
  int buffers = 2;  ///< number of tensors in memory at a time, to be read or written
  bool operator==(const ActivationOffload&) const = default;
};

/// Used only on the rank's own thread. The shapes, strides and bits of a tensor do not change.
class ActivationStore {
 public:
  using Number = std::size_t;
  virtual ~ActivationStore() = default;
  /// True if the store takes the tensor. If not, the caller keeps it.
  [[nodiscard]] virtual bool takes(const at::Tensor& tensor) const {
    return tensor.numel() > 0 && tensor.is_non_overlapping_and_dense();
  }
  /// Takes the values of a tensor, whose memory the caller may free. Returns a number for take().
  virtual Number put(const at::Tensor& tensor) = 0;
  /// Starts to bring the tensor back. Never waits.
  virtual void fetch(Number number) = 0;
  /// Returns the tensor in new memory, and forgets it.
  virtual at::Tensor take(Number number) = 0;
};

/// A store in a tier. Memory: UnitBuffers. Its files are as large as the largest tensor so far
/// times the number of tensors that rested at a time, in whole files of kSlots. Errors: those of
/// the tier.
std::unique_ptr<ActivationStore> activations_in(memory::Tier& tier, int buffers);
/// Number of tensors for which a file has room.
inline constexpr std::int64_t kActivationSlots = 8;

/// A store in pinned memory of the host of `device`, a GPU. Tensors travel on streams of their own:
/// down beside the forward pass, and back beside the block before the one that needs them; the host
/// waits for nothing. Memory of the device: `buffers` tensors that are on their way. Memory of the
/// host: pinned_bytes() of the largest tensor for each that rests. `beyond`: the store to which
/// they are handed on when they have arrived on the host, which then waits for each of them;
/// nullptr: they stay there.
std::unique_ptr<ActivationStore> activations_on_host(
    c10::Device device, int buffers, std::unique_ptr<ActivationStore> beyond = nullptr);

/// Divides a tensor that all ranks of `group` have alike: this rank keeps one part, in `inner`, or
/// in memory if that is nullptr. take() gathers the parts, so all ranks call it in the same order.
/// Tensors that cannot be divided evenly are kept whole. `world` and `group` must outlive this.
std::unique_ptr<ActivationStore> partitioned_activations(comm::World& world,
                                                         const comm::Group& group,
                                                         std::unique_ptr<ActivationStore> inner);

}  // namespace tessera::parallel
