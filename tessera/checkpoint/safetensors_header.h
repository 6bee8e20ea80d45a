// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, made before any data is written: offsets follow from dtypes,
// names and shapes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {

/// Sorts `entries` as they will lie in the file, sets their offsets and returns the file's first
/// bytes: the length and the padded JSON. Error{Bug} for a name that is there twice or reserved.
std::string lay_out(std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata);

/// Elements of `shape`, or -1 where a dim is negative or the product of the dims that are not zero
/// times 8 bytes does not fit 63 bits (so that no stride overflows either).
std::int64_t checked_numel(const std::vector<std::int64_t>& shape) noexcept;

/// Dims of a tensor that a file may ask for; more is a lie that would only cost memory.
inline constexpr std::size_t kMaxDims = 64;

/// Error{Format} unless `path` is a plain file, or (where `follow`) a link to one: opening a pipe
/// would wait for ever.
void require_plain_file(const std::filesystem::path& path, bool follow);

}  // namespace tessera::checkpoint
