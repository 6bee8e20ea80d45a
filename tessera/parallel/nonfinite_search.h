// SPDX-License-Identifier: Apache-2.0
// Finds where the first non-finite gradient of a step was computed: rank, micro-batch, block and
// parameter.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Used only on the rank's own thread.
class NonfiniteSearch {
 public:
  struct Culprit {
    int rank = 0;  ///< whose micro-batch it is
    int micro = 0;
    std::string block, tensor;
  };
  /// This rank's finding, as numbers that can be sent along with a reduction.
  using Finding = std::array<double, 4>;

  /// World and model must outlive this.
  NonfiniteSearch(comm::World& world, ModelInstance& model) : world_(world), model_(model) {}

  /// Forgets the finding; call before a step.
  void clear() {
    found_.reset();
    open_.clear();
  }
  /// Checks the gradients that a block's sinks hold after a backward pass. Cost: one pass over
  /// them.
  void inspect(const BlockRun& run);
  /// The host waits once for a device, if gradients were checked there.
  [[nodiscard]] Finding finding();
  /// Evaluates the findings of all ranks of the world, which are concatenated in `all`.
  [[nodiscard]] std::optional<Culprit> culprit(std::span<const double> all) const;
  /// Gathers the findings of all ranks, then evaluates them. Collective.
  [[nodiscard]] std::optional<Culprit> culprit_of_all();

 private:
  /// The micro-batch, the rank of the world that loaded it, the block, and the parameter's index in
  /// ModelInstance::places().
  struct Found {
    int micro, source, block, place;
  };
  [[nodiscard]] std::array<int, 3> order_of(const Found& found) const;
  [[nodiscard]] int source_of(int slice, int slices) const;
  void take(Found here, const std::string& parameter);

  comm::World& world_;
  ModelInstance& model_;
  std::optional<Found> found_;
  /// Of gradients on a device, whose answer the host has not read yet.
  struct Open {
    Found here;
    std::string parameter;
    at::Tensor finite;  ///< bool, 0-d
  };
  std::vector<Open> open_;
};

}  // namespace tessera::parallel
