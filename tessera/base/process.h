// SPDX-License-Identifier: Apache-2.0
// Queries about processes of this host.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Returns whether the process runs. A process that has ended but has not been reaped (a zombie)
/// does not run.
bool is_running(std::int64_t pid);

/// Returns the nearest ancestor of `pid` that was started without `variable` in its environment; 0
/// if there is none. An ancestor whose environment cannot be read counts as started without it.
std::int64_t ancestor_without(std::string_view variable, std::int64_t pid);

}  // namespace tessera
