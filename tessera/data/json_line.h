// SPDX-License-Identifier: Apache-2.0
// Checks a whole line of a .jsonl file and extracts one string from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

/// An error in a line, and its byte position (from 0).
struct LineProblem {
  std::size_t offset;
  std::string what;
  std::string fix;
};

/// Extracts the string at `field` of the JSON object in `line` into `out`. `line` must be valid
/// UTF-8. A lone surrogate escape is an error, or (replace) becomes U+FFFD and is counted. These
/// are errors: anything other than one object, the field absent, repeated or not a string, nesting
/// deeper than 200.
std::optional<LineProblem> read_text_field(std::string_view line,
                                           std::string_view field,
                                           bool replace,
                                           std::string& out,
                                           std::int64_t& replaced);

}  // namespace tessera::data
