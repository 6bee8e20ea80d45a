// SPDX-License-Identifier: Apache-2.0
// How texts of many lengths are put together into samples of one length.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::tasks {

enum class Packing : std::uint8_t {
  None,     ///< each text is a sample, whose end is padding
  BestFit,  ///< the longest texts first, each into the sample with the least room that suffices
  BestFitSplit,  ///< the same, after cutting texts that are too long into pieces
  InOrder,       ///< in their order, each behind the one before it as long as there is room
  FirstFit,      ///< the longest texts first, each into the first sample that has the room
  Wrapped,       ///< one stream of all texts, cut into samples
};

/// Tokens [begin, end) of text number `text`.
struct Piece {
  std::int64_t text = 0, begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  bool operator==(const Piece&) const = default;
};
/// What a sample consists of, in order.
using PackedSample = std::vector<Piece>;

/// The samples of at most `length` tokens that texts of `lengths` tokens make. Texts without tokens
/// are left out; a text that is too long loses its end, unless its kind of packing cuts it into
/// pieces. The same for the same lengths. O(n log n).  Source: "best-fit decreasing" and "wrapped"
/// as TRL's pack_dataset() does them.
std::vector<PackedSample> pack(const std::vector<std::int64_t>& lengths,
                               std::int64_t length,
                               Packing packing);

}  // namespace tessera::tasks
