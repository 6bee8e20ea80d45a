// SPDX-License-Identifier: Apache-2.0
// One line of a .jsonl file: the whole line is checked, one string is taken out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

/// What is wrong with a line, and at which of its bytes (from 0).
struct LineProblem {
  std::size_t offset;
  std::string what;
  std::string fix;
};

/// Puts the string at `field` of the JSON object in `line` into `out`. `line` must be valid UTF-8.
/// A lone surrogate escape is a problem, or (replace) becomes U+FFFD and is counted. Refused:
/// anything but one object, the field absent, twice or no string, nesting deeper than 200.
std::optional<LineProblem> read_text_field(std::string_view line,
                                           std::string_view field,
                                           bool replace,
                                           std::string& out,
                                           std::int64_t& replaced);

}  // namespace tessera::data
