// SPDX-License-Identifier: Apache-2.0
// The names of tessera's own keys.
#pragma once

#include <string>
#include <vector>

namespace tessera::planner {

/// The paths of tessera's own keys and sections.
const std::vector<std::string>& config_paths();

}  // namespace tessera::planner
