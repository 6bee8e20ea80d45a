// SPDX-License-Identifier: Apache-2.0
// The ranks that have another model than the policy (rl.models, tensor and ranks).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/family.h"

namespace tessera::rlhf {

/// Numbers of the worlds of such models (comm::World::part), behind those of a divided job.
constexpr int kReferenceWorld = 5, kCriticWorld = 6, kFirstRewardWorld = 7;

/// Consecutive ranks of those that learn, of which `tensor` share every layer of a model.
struct ModelRanks {
  int first = 0, count = 1, tensor = 1;
};
/// Returns the mesh of these ranks.
mesh::Mesh mesh_of(const ModelRanks& ranks, const models::Resolved& model);

/// The world in which a model is computed, as one of the ranks that learn sees it. Used only on the
/// rank's own thread.
class ModelWorld {
 public:
  /// `all`: the ranks that learn, which must outlive this object; `ranks`: nothing if the model is
  /// on all of them, in the policy's groups; `number`: of its own world otherwise, another one for
  /// each model. Not collective.
  ModelWorld(comm::World& all,
             const std::optional<ModelRanks>& ranks,
             const models::Resolved& model,
             int number);
  /// Returns whether this rank has the model.
  [[nodiscard]] bool is_here() const { return here_; }
  /// The world of the ranks that have it, of which this one must be.
  [[nodiscard]] comm::World& world() const { return own_ ? *own_ : all_; }
  /// Gives values to the ranks without the model: all ranks that have it have them, and the others
  /// have as many numbers. `what`: for reports. Collective over all ranks that learn; does nothing
  /// if all of them have the model.
  void share(std::vector<double>& values, const char* what) const;

 private:
  comm::World& all_;
  std::unique_ptr<comm::World> own_;  ///< nullptr: `all_`, or none on this rank
  bool here_ = true;
  bool apart_ = false;  ///< whether some ranks do not have it
};

}  // namespace tessera::rlhf
