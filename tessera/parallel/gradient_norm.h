// SPDX-License-Identifier: Apache-2.0
// The norm of the reduced gradient, the same bits in every layout, and which parameter made it
// infinite or NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Threads: the rank's own.
class GradientNorm {
 public:
  /// A gradient of a flat group, fp32.
  using OfGroup = std::function<at::Tensor(int group)>;
  /// A parameter, and the block that uses it.
  struct Suspect {
    std::string block, tensor;
  };

  /// World and model must outlive this.
  GradientNorm(comm::World& world, ModelInstance& model);

  /// Sums of squares of every chunk of every parameter, in one order that no layout changes, on
  /// every rank. `shard`: this rank's part of the gradient of a group. Collective.
  std::vector<double> chunk_sums(const OfGroup& shard);
  /// Where every rank has a gradient of its own: what each gives to the mean square of the ranks'
  /// norms. `own`: this rank's whole gradient of a group. Collective.
  std::vector<double> rank_sums(const OfGroup& own);
  /// The parameter where a sum of chunk_sums() that is not finite most likely began. What is not
  /// finite spreads to the blocks before, so it is a parameter of the last block that has one. A
  /// tied parameter collects the gradients of several blocks, so it is named only where no other
  /// parameter can be. Local, and the same on every rank.
  [[nodiscard]] std::optional<Suspect> suspect(std::span<const double> sums) const;

 private:
  std::vector<double> over_stages(std::vector<double> mine);
  std::vector<double> over_boxes(std::vector<double> ordered);

  comm::World& world_;
  ModelInstance& model_;
  const comm::Group& group_;
  std::int64_t chunks_per_rank_ = 0;
  comm::RegionPtr sums_region_;
};

}  // namespace tessera::parallel
