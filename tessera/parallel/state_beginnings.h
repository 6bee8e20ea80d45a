// SPDX-License-Identifier: Apache-2.0
// At which update of the training the optimizer state of each parameter began. A parameter that a
// run trains without having state for it counts its updates from there, as torch does.
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

/// Name of an entry of a checkpoint, F64 [1]: the number of updates of the training before the
/// state of the parameter began. Absent where the state began with the training.
std::string beginning_of(std::string_view parameter);
/// Number of updates that a checkpoint counts.
std::int64_t updates_in(const checkpoint::Meta& meta);
/// Number of those before the state of the parameter began. Error{Format} if the entry holds no
/// such number.
std::int64_t updates_before(const checkpoint::Checkpoint& checkpoint, std::string_view parameter);

/// The beginnings of the trainable parameters of a rank. Threads: the rank's own.
class StateBeginnings {
 public:
  /// Replaces all of them by what a checkpoint implies: parameters of which it has no state begin
  /// at its update. One host's part of a save (save_id() != 0) implies nothing, because it does not
  /// show what the other hosts hold.
  void load(ModelInstance& model,
            const optim::Rule& rule,
            const checkpoint::Checkpoint& checkpoint);
  /// Appends the entries of this stage's parameters to the pieces of a save. The caller makes sure
  /// that one rank alone does it. The pieces are views into this object.
  void add_pieces(ModelInstance& model, std::vector<checkpoint::PieceBytes>& out);
  /// The scalars of an update with the step counted from the beginning of the parameter's state.
  [[nodiscard]] optim::UpdateScalars scalars_of(const optim::ParamFacts& facts,
                                                optim::UpdateScalars scalars) const;

 private:
  std::map<std::string, double> updates_;  ///< of parameters that did not begin with the training
};

}  // namespace tessera::parallel
