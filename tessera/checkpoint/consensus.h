// SPDX-License-Identifier: Apache-2.0
// Agreement between ranks that can only communicate through Ranks::largest: on a number, or on the
// message of a failure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// Returns rank `root`'s value on every rank. Cost: one collective.
std::uint64_t broadcast(const Ranks& ranks, int root, std::uint64_t value);
/// Returns at most 1,000 bytes of rank `root`'s text. Cost: two collectives.
std::string broadcast(const Ranks& ranks, int root, const std::string& text);

/// Returns the largest of the ranks' numbers; 0 if no rank has one. Cost: two collectives.
std::uint64_t largest(const Ranks& ranks, std::optional<std::uint64_t> mine);

/// Returns what `work` throws, as an Error.
std::optional<Error> caught(const std::function<void()>& work);

/// Runs `work` on every rank. If it throws on any rank, every rank calls `undo` (once all have
/// finished the work) and throws the error of the lowest rank that failed. Cost: one collective,
/// and seven more if a rank failed.
void run_together(const Ranks& ranks,
                  const std::function<void()>& work,
                  const std::function<void()>& undo);

}  // namespace tessera::checkpoint
