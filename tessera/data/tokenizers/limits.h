// SPDX-License-Identifier: Apache-2.0
// The sections "truncation" and "padding" of a tokenizer.json: how long the ids of a text are at
// most and at least, as the tokenizers library has it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/tokenizers/part_reader.h"
#include "tessera/data/tokenizers/post_processors.h"

namespace tessera::data::tokenizers {

struct Truncation {
  enum class Strategy : std::uint8_t {
    LongestFirst,  ///< of a pair the longer text, until both are of one length
    OnlyFirst,
    OnlySecond
  };
  std::int64_t max_length = 512;  ///< with the tokens that the post-processor adds
  Strategy strategy = Strategy::LongestFirst;
  bool left = false;  ///< what comes first goes
};

struct Padding {
  std::optional<std::int64_t> length;  ///< absent: that of the longest text, here of this one
  std::int64_t multiple = 0;           ///< the length is rounded up to one of it; 0: it is not
  std::int32_t id = 0, type_id = 0;
  std::string token = "[PAD]";
  bool left = false;  ///< it comes before the text
};

/// What a file says; a section that is absent or null says nothing.
struct Limits {
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
};
/// Error{Format} for members that are none, with their place.
Limits read_limits(const Part& file);

/// Cuts the one or two encodings, to which `added` tokens will come; nothing where these alone are
/// more than the length, which is what the library does. Error{Data} where the text that
/// may be cut is too short for that.
void truncate(std::vector<Encoding>& encodings, const Truncation& how, std::int64_t added);

/// Fills up an encoding, and says which of its tokens are no padding: 1 or 0 each.
std::vector<std::uint8_t> pad(Encoding& encoding, const std::optional<Padding>& how);

}  // namespace tessera::data::tokenizers
