// SPDX-License-Identifier: Apache-2.0
// The presets of all families, by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::models {

/// The names of the presets of all families; no two families share one.
std::vector<std::string> all_presets();
/// The family that has a preset of this name; nothing if none has.
std::optional<std::string> family_of_preset(std::string_view preset);
/// Adds `model.family` to a whole configuration that names a preset but neither a family nor
/// `model.from`: the family that has the preset. For an unknown preset it is the family that has
/// the nearest one, if there is one, which the reader of the section then suggests.
void spell_out_family(json::Value& config);

}  // namespace tessera::models
