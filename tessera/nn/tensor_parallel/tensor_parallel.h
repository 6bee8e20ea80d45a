// SPDX-License-Identifier: Apache-2.0
// How the ranks that hold a layer between them share it: which logical axis of a parameter is cut
// over which axes of the mesh.
#pragma once

#include <cstdint>

#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::comm {
class World;
struct Group;
}  // namespace tessera::comm

namespace tessera::nn {

enum class TensorMode : std::uint8_t {
  OneD,   ///< heads, features of the MLP and the vocabulary are cut, everything else is replicated
  TwoD,   ///< weights and activations lie on a square; with a depth (2.5d) on several, each with
          ///< samples of its own
  ThreeD  ///< they lie on a cube
};

/// The ranks that hold the weights of a layer between them. Both pointers outlive it.
struct TensorParallel {
  comm::World* world = nullptr;
  const comm::Group* group = nullptr;
  TensorMode mode = TensorMode::OneD;
  /// Between the layers whose weights are cut every rank has a share of the tokens, not all of
  /// them. Parameters that are used there get a share of their gradient on each rank.
  bool sequence = false;
  /// Samples and channels are cut too between layers.
  [[nodiscard]] bool on_grid() const { return mode != TensorMode::OneD; }
};

/// Where a parameter is cut: its logical axes, and what they are of it, in the table of the mode.
mesh::ShardSpec spec_of(const ParamInfo& info, TensorMode mode);
/// Gives the parameter its spec and this rank's box of it. Error{Config} where some rank would have
/// nothing.
void place(Param& param, const TensorParallel& tensor);

}  // namespace tessera::nn
