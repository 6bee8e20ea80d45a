// SPDX-License-Identifier: Apache-2.0
// What ranks that share nothing but Ranks::any can still agree on: a number, a failure in its own
// words.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// The low `bits` of rank `root`'s value, on every rank. Cost: one any() a bit.
std::uint64_t broadcast(const Ranks& ranks, int root, std::uint64_t value, int bits);
/// Rank `root`'s text, at most 1,000 bytes of it. Cost: one any() a bit; for failures only.
std::string broadcast(const Ranks& ranks, int root, const std::string& text);

/// The largest of the ranks' numbers of so many bits; 0 where none has one. Cost: one any() a bit.
std::uint64_t largest(const Ranks& ranks, std::optional<std::uint64_t> mine, int bits);

/// What `work` throws, as an Error.
std::optional<Error> caught(const std::function<void()>& work);

/// Runs `work` on every rank. Where it throws on any, every rank calls `undo` (once all have come
/// to the end of the work) and throws the error of the lowest rank that failed.
void together(const Ranks& ranks,
              const std::function<void()>& work,
              const std::function<void()>& undo);

}  // namespace tessera::checkpoint
