// SPDX-License-Identifier: Apache-2.0
// The update at which the optimizer state of each parameter began. If a run trains a parameter for
// which it has no state, the parameter's updates are counted from there, as torch does.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Name of the checkpoint entry, F64 [1], with the number of updates made before the state of the
/// parameter began. The entry is absent if the state began with the training.
std::string beginning_of(std::string_view parameter);
/// Number of updates that a checkpoint counts.
std::int64_t updates_in(const checkpoint::Meta& meta);
/// Number of updates made before the state of the parameter began. Throws Error{Format} if the
/// entry holds no such number.
std::int64_t updates_before(const checkpoint::Checkpoint& checkpoint, std::string_view parameter);

/// The beginnings of the trainable parameters of a rank. Used only on the rank's own thread.
class StateBeginnings {
 public:
  /// Replaces all beginnings by those that a checkpoint implies: parameters without state in it
  /// begin at its update. One host's part of a save (save_id() != 0) implies nothing, because it
  /// does not contain what other hosts hold.
  void load(ModelInstance& model,
            const optim::Rule& rule,
            const checkpoint::Checkpoint& checkpoint);
  /// The state of the parameter begins after that number of updates.
  void begin(const std::string& parameter, std::int64_t updates);
  /// The parameter has no state any more.
  void forget(const std::string& parameter) { updates_.erase(parameter); }
  /// Appends the entries for this stage's parameters to the pieces of a save. The caller must
  /// ensure that only one rank does it. The pieces are views into this object.
  void add_pieces(ModelInstance& model, std::vector<checkpoint::PieceBytes>& out);
  /// The scalars of an update with the step counted from the beginning of the parameter's state.
  [[nodiscard]] optim::UpdateScalars scalars_of(const std::string& parameter,
                                                optim::UpdateScalars scalars) const;

 private:
  /// Only parameters whose state did not begin with the training.
  std::map<std::string, double> updates_;
};

}  // namespace tessera::parallel
