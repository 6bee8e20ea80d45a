// SPDX-License-Identifier: Apache-2.0
// Keys that are given and have no effect, because another key switches off what they describe.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// Returns a note for each key that needs another one: "parallel.tensor.mode has no effect:
/// parallel.tensor.size is 1". A key with its default is not noted, and none of a section that the
/// user switches off by name ("fp16": {"enabled": false, ...}), or of a resolved configuration.
std::vector<std::string> idle_key_notes(const TrainConfig& config, const config::Origins& origins);

/// Removes the sections of a resolved configuration that are switched off.
void drop_unused_sections(const TrainConfig& config, json::Value& resolved);

}  // namespace tessera::planner
