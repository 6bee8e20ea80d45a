// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, computed before any data is written: offsets follow from
// dtypes, names and shapes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

/// Sorts `entries` in the order of the file, sets their offsets and returns the file's first bytes:
/// the length and the padded JSON. Throws Error{Bug} for a duplicate or reserved name.
std::string lay_out(std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata);

/// Returns the elements of `shape`, or -1 if a dim is negative or the product of the non-zero dims
/// times 8 bytes does not fit 63 bits (so that no stride overflows either).
std::int64_t checked_numel(const std::vector<std::int64_t>& shape) noexcept;

/// Maximum number of dims of a tensor in a file; more would only cost memory.
inline constexpr std::size_t kMaxDims = 64;

/// Throws Error{Format} unless `path` is a regular file, or (if `follow`) a link to one: opening a
/// pipe would wait forever.
void require_plain_file(const std::filesystem::path& path, bool follow);

}  // namespace tessera::checkpoint
