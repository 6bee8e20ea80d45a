// SPDX-License-Identifier: Apache-2.0
// The norm of the reduced gradient, with the same bits in every layout, and the parameter that made
// it infinite or NaN.
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

/// Used only on the rank's own thread.
class GradientNorm {
 public:
  /// Returns the gradient of a flat group, fp32.
  using OfGroup = std::function<at::Tensor(int group)>;
  /// Returns the sums of squares of the chunks of a flat group's gradient, or nothing if they are
  /// not known.
  using KnownSums = std::function<std::span<const double>(int group)>;
  /// A parameter and the block that uses it.
  struct Suspect {
    std::string block, tensor;
  };

  /// World and model must outlive this.
  GradientNorm(comm::World& world, ModelInstance& model);

  /// Sums of squares of every 1024-element chunk of every parameter, and of every matrix of stacked
  /// parameters, in an order that is the same in every layout, on every rank. `shard` returns this
  /// rank's part of a group's gradient, and is not called for a group whose sums are `known`.
  /// Collective.
  std::vector<double> chunk_sums(const OfGroup& shard, const KnownSums& known = {});
  /// For ranks that keep separate gradients: each rank's contribution to the mean square of the
  /// ranks' norms. `own` returns this rank's whole gradient of a group. Collective.
  std::vector<double> rank_sums(const OfGroup& own);
  /// Returns the parameter where a non-finite sum of chunk_sums() most likely originated.
  /// Non-finite values spread to earlier blocks, so it is a parameter of the last block that has
  /// one. A tied parameter collects gradients of several blocks, so it is returned only if no other
  /// parameter can be the cause. Local, and the same on every rank.
  [[nodiscard]] std::optional<Suspect> suspect(std::span<const double> sums) const;

 private:
  /// The trained buffers whose gradients are summed over the same ranks.
  struct Fold {
    const comm::Group* ranks = nullptr;
    std::int64_t chunks = 0;  ///< of a rank's parts of the buffers
    comm::RegionPtr region;   ///< the sums of all chunks, rank after rank
    comm::WorkPtr work;
  };
  /// A buffer's chunks among those of its fold.
  struct Place {
    std::size_t fold = 0;
    std::int64_t first = 0;  ///< within a rank's part
  };
  void gather(std::size_t fold, const OfGroup& shard, const KnownSums& known);
  std::vector<double> over_stages(std::vector<double> mine);
  std::vector<double> over_experts(std::vector<double> ordered);
  std::vector<double> over_boxes(std::vector<double> ordered);

  comm::World& world_;
  ModelInstance& model_;
  std::vector<Fold> folds_;
  std::vector<Place> places_;  ///< by group
};

}  // namespace tessera::parallel
