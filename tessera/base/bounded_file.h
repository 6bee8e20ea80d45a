// SPDX-License-Identifier: Apache-2.0
// Files from outside, of which only a bounded part is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/budget.h"

namespace tessera::files {

/// Reads a file like read(). Throws Error{Data} for more than `most` bytes, before it reads them if
/// the size is known, and for one that never ends, such as a device.
std::string read_within(const std::filesystem::path& path,
                        std::uint64_t most = budget::kWholeFileBytes);

/// The first byte of a hole, a part of a file that is not stored and reads as zeros; nothing if the
/// file has none, or cannot be opened.
std::optional<std::uint64_t> first_hole(const std::filesystem::path& path);

}  // namespace tessera::files
