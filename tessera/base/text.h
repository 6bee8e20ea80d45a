// SPDX-License-Identifier: Apache-2.0
// Text formatting: nearest names, sizes, durations, numbers that round-trip, and UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Returns the candidate that the user probably meant, ignoring case. For names of three letters or
/// more: one that begins with `name`, else the first one that contains all words of `name`
/// (batch_size: train_batch_size). Otherwise the candidate with the smallest edit distance
/// (Damerau-Levenshtein), if it is small enough.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);
/// Returns "did you mean \"lr\"?" or, if no candidate is near, "expected one of: ..." (at most 12
/// names).
std::string suggestion(std::string_view name, std::span<const std::string> candidates);

std::string bytes(std::uint64_t count);  ///< "1.5 GiB", "512 B"
std::string count(double number);        ///< "124.4M", "1.2k", "87"
std::string duration(double seconds);    ///< "2h13m", "48s", "3m05s"
std::string number(double value);        ///< shortest decimals that round-trip to the same double
std::string with_commas(std::int64_t value);  ///< "1,115,394"
double unsigned_nan(double value);            ///< the value; the sign of a NaN is cleared

std::string join(std::span<const std::string> parts, std::string_view separator);
/// Joins the first few of many parts: "a, b, c and 253 more".
std::string join_some(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string lower(std::string_view text);

/// Returns the offset of the first byte that is not valid UTF-8 (overlong forms and surrogates are
/// invalid), or nothing.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);
/// Returns the number of bytes at the end that begin a UTF-8 sequence without completing it: 0 to
/// 3.
std::size_t incomplete_utf8_tail(std::string_view text);
/// Replaces every invalid byte sequence by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
/// Returns the text as a terminal may show it: control characters, with which names from a file
/// could move its cursor or change its title, become "\x1b"; line ends and tabs stay. Invalid UTF-8
/// becomes U+FFFD.
std::string printable(std::string_view text);

}  // namespace tessera::text
