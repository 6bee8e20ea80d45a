// SPDX-License-Identifier: Apache-2.0
// The sections "truncation" and "padding" of a tokenizer.json: the maximum and minimum number of
// ids of a text, as in the tokenizers library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/text/tokenizers/part_reader.h"
#include "tessera/text/tokenizers/post_processors.h"

namespace tessera::text::tokenizers {

struct Truncation {
  enum class Strategy : std::uint8_t {
    LongestFirst,  ///< the longer text of a pair, until both have the same length
    OnlyFirst,
    OnlySecond
  };
  std::int64_t max_length = 512;  ///< including the post-processor's tokens
  Strategy strategy = Strategy::LongestFirst;
  bool left = false;  ///< remove tokens from the beginning
};

struct Padding {
  std::optional<std::int64_t> length;  ///< absent: the length of the longest text, here of this one
  /// The length is rounded up to a multiple of this; 0: not rounded.
  std::int64_t multiple = 0;
  std::int32_t id = 0, type_id = 0;
  std::string token = "[PAD]";
  bool left = false;  ///< pad before the text
};

/// The settings of a file; a section that is absent or null changes nothing.
struct Limits {
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
};
/// Throws Error{Format} for invalid members, with their place.
Limits read_limits(const Part& file);

/// Truncates the one or two encodings, to which `added` tokens will be added; changes nothing if
/// these alone exceed the length, as in the library. Throws Error{Data} if the text to truncate is
/// too short.
void truncate(std::vector<Encoding>& encodings, const Truncation& how, std::int64_t added);

/// Pads an encoding, and returns 1 for each of its tokens that is not padding, else 0.
std::vector<std::uint8_t> pad(Encoding& encoding, const std::optional<Padding>& how);

}  // namespace tessera::text::tokenizers
