// SPDX-License-Identifier: Apache-2.0
// The registry of objectives. An objective is the last block of a model: the final norm of the
// trunk, a head, and the loss. Adding one is one file in models/objectives/ that ends with
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

/// Makes the last block of a model over `trunk`, under the name "head". `options` is a JSON object
/// with the objective's own options; their problems carry their places.
using ObjectiveFactory = nn::BlockSpec (*)(const TrunkOutput& trunk,
                                           const json::Value& options,
                                           config::Problems& problems,
                                           config::Origins& origins);
Registry<ObjectiveFactory>& objectives();
#define TESSERA_OBJECTIVE(name, factory) \
  static const bool tessera_objective_##factory = ::tessera::models::objectives().add(name, factory)

/// The objective as which a trained model is kept, where what it was trained by needs more than its
/// head: that of a model which learned from preferences continues text.
struct KeptObjective {
  std::string name;
  json::Value options = json::Value::object();
};
/// By the objective that a model was trained by; an objective that is absent is kept as it is.
Registry<KeptObjective>& kept_objectives();
#define TESSERA_OBJECTIVE_KEPT_AS(name, key, ...)  \
  static const bool tessera_kept_objective_##key = \
      ::tessera::models::kept_objectives().add(name, __VA_ARGS__)

/// The trunk with an objective as its last block. Error{Config} for an unknown objective, with the
/// nearest name, and for options that it does not have or accept.
nn::Model with_objective(Trunk trunk,
                         std::string_view objective,
                         const json::Value& options = json::Value::object());

}  // namespace tessera::models
