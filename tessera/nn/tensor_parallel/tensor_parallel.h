// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: over which axes of the mesh each logical axis of a parameter is split.
#pragma once

#include <cstdint>

#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/tensor/param.h"

namespace tessera::comm {
class World;
struct Group;
}  // namespace tessera::comm

namespace tessera::nn {

enum class TensorMode : std::uint8_t {
  OneD,
  /// Weights and activations are placed on a square of ranks; with a depth (2.5d) on several
  /// squares, each with its own samples.
  TwoD,
  ThreeD  ///< weights and activations are placed on a cube of ranks
};

/// The ranks that together hold the weights of a layer. Both pointers must outlive this struct.
struct TensorParallel {
  comm::World* world = nullptr;
  const comm::Group* group = nullptr;
  TensorMode mode = TensorMode::OneD;
  /// Sequence parallelism: between the layers with split weights every rank has a share of the
  /// tokens. Parameters used there get a share of their gradient on each rank.
  bool sequence = false;
  /// True if samples and channels are split between layers too.
  [[nodiscard]] bool on_grid() const { return mode != TensorMode::OneD; }
};

/// The split of a parameter, by the mode's table of logical axes and of what each dim is.
mesh::ShardSpec spec_of(const ParamInfo& info, TensorMode mode);
/// Sets the parameter's spec and this rank's box of it; nullptr: layers, or experts, are not shared
/// among ranks. Throws Error{Config} if a rank would hold nothing.
void place(Param& param, const TensorParallel* tensor, const ExpertParallel* experts);

}  // namespace tessera::nn
