// SPDX-License-Identifier: Apache-2.0
// What the kernel says about processes of this host.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Whether such a process runs. One that has ended does not, though nobody has asked yet how: a job
/// that was killed with its supervisor can leave such processes for long.
bool is_running(std::int64_t pid);

/// The nearest ancestor of `pid` that was started without `variable` in its environment; 0 if there
/// is none. One that may not be looked at counts as started without.
std::int64_t ancestor_without(std::string_view variable, std::int64_t pid);

}  // namespace tessera
