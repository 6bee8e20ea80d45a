// SPDX-License-Identifier: Apache-2.0
// Where the first gradient of a step that is not finite was made: rank, micro-batch, block and
// parameter.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Threads: the rank's own.
class NonfiniteSearch {
 public:
  struct Culprit {
    int rank = 0;
    int micro = 0;
    std::string block, tensor;
  };
  /// What this rank found, as numbers that can be sent along with a reduction.
  using Finding = std::array<double, 3>;

  /// World and model must outlive this.
  NonfiniteSearch(comm::World& world, ModelInstance& model) : world_(world), model_(model) {}

  /// Forgets what was found; before a step.
  void clear() { found_.reset(); }
  /// Looks through the gradients that the sinks of a block hold after a backward pass. Cost: one
  /// pass over them.
  void inspect(const BlockRun& run);
  [[nodiscard]] Finding finding() const;
  /// From the findings of all ranks of the world, one behind the other.
  [[nodiscard]] std::optional<Culprit> culprit(std::span<const double> all) const;
  /// Gathers the findings of all ranks first. Collective.
  [[nodiscard]] std::optional<Culprit> culprit_of_all() const;

 private:
  /// Micro-batch, block, and the parameter's index in ModelInstance::places().
  struct Found {
    int micro, block, place;
  };

  comm::World& world_;
  ModelInstance& model_;
  std::optional<Found> found_;
};

}  // namespace tessera::parallel
