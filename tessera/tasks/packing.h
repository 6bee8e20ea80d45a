// SPDX-License-Identifier: Apache-2.0
// Packs sequences of various lengths into samples of one length.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::tasks {

enum class Packing : std::uint8_t {
  None,          ///< each sequence is a sample, padded at its end
  BestFit,       ///< the longest sequences first, each into the fullest sample in which it fits
  BestFitSplit,  ///< the same, after cutting sequences that are too long into pieces
  InOrder,       ///< in order, each after the previous one while it fits
  FirstFit,      ///< the longest sequences first, each into the first sample in which it fits
  Wrapped,       ///< one stream of all sequences, cut into samples
};

/// Tokens [begin, end) of sequence number `text`.
struct Piece {
  std::int64_t text = 0, begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};
/// The pieces of a sample, in order.
using PackedSample = std::vector<Piece>;

/// Packs sequences of `lengths` tokens into samples of at most `length` tokens. Empty sequences are
/// skipped; a sequence that is too long is truncated, unless the packing cuts it into pieces.
/// Deterministic. O(n log n). Source: "best-fit decreasing" and "wrapped" as in TRL's
/// pack_dataset().
std::vector<PackedSample> pack(const std::vector<std::int64_t>& lengths,
                               std::int64_t length,
                               Packing packing);

}  // namespace tessera::tasks
