// SPDX-License-Identifier: Apache-2.0
// Python's string methods for UTF-8 text; positions count code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::chat {

/// Splits the text into its code points. An invalid byte counts as one.
std::vector<std::string_view> characters(std::string_view text);
std::size_t count_characters(std::string_view text);
std::int32_t code_point(std::string_view character);  ///< of one of characters()
std::string encode_utf8(std::int32_t code);
bool is_space(std::int32_t code);      ///< str.isspace
bool is_printable(std::int32_t code);  ///< str.isprintable
bool is_alpha(std::int32_t code);
bool is_decimal(std::int32_t code);
bool is_cased(std::int32_t code);
bool is_upper(std::int32_t code);
bool is_lower(std::int32_t code);

/// str.strip, for white space or for the characters in `chars`.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text, std::string_view chars);
std::string_view strip_right(std::string_view text, std::string_view chars);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
/// Str.title: a word begins after a character without case.
std::string title(std::string_view text);
/// The filter `title`: a word begins after white space, - ( { [ <.
std::string jinja_title(std::string_view text);
std::string swapcase(std::string_view text);

/// str.split without a separator, which splits at white space. `most`: maximum number of splits;
/// negative: all.
std::vector<std::string> split_words(std::string_view text, std::int64_t most, bool from_right);
/// str.split with a separator, which must not be empty.
std::vector<std::string> split_by(std::string_view text,
                                  std::string_view separator,
                                  std::int64_t most,
                                  bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
/// str.replace; `most` negative: all.
std::string replace(std::string_view text,
                    std::string_view from,
                    std::string_view to,
                    std::int64_t most);

}  // namespace tessera::text::chat
