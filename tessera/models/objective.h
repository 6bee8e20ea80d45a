// SPDX-License-Identifier: Apache-2.0
// The registry of objectives. An objective is the last block of a model: the final norm of the
// trunk, a head, and the loss. To add one, add one file in models/objectives/ that ends with
// TESSERA_OBJECTIVE.
#pragma once

#include <string>
#include <string_view>

#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// Makes the last block of a model over `trunk`, with the name "head". `options` is a JSON object
/// with the objective's own options; errors in it are added to `problems` with their places.
using ObjectiveFactory = nn::BlockSpec (*)(const TrunkOutput& trunk,
                                           const json::Value& options,
                                           config::Problems& problems,
                                           config::Origins& origins);
Registry<ObjectiveFactory>& objectives();
#define TESSERA_OBJECTIVE(name, factory) \
  static const bool tessera_objective_##factory = ::tessera::models::objectives().add(name, factory)

/// The objective under which a trained model is saved, if its training objective needs more than a
/// head: a model trained on preferences is saved as one that continues text.
struct KeptObjective {
  std::string name;
  json::Value options = json::Value::object();
};
/// Maps a training objective to the one under which the model is saved; an absent objective is
/// saved as itself.
Registry<KeptObjective>& kept_objectives();
#define TESSERA_OBJECTIVE_KEPT_AS(name, key, ...)  \
  static const bool tessera_kept_objective_##key = \
      ::tessera::models::kept_objectives().add(name, __VA_ARGS__)

/// The trunk with an objective as its last block. Throws Error{Config} for an unknown objective,
/// with the nearest name, and for invalid options.
nn::Model with_objective(Trunk trunk,
                         std::string_view objective,
                         const json::Value& options = json::Value::object());

}  // namespace tessera::models
