// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

namespace tessera::text {
namespace {

char lower_char(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Returns the Damerau-Levenshtein distance with adjacent transpositions (optimal string alignment).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j)
    d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Returns the length of the UTF-8 sequence that begins with `lead`; 0 if none does.
std::size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Returns whether `byte` may be the second byte after `lead`. This rejects overlong forms,
// surrogates and values beyond U+10FFFF.
bool second_ok(unsigned char lead, unsigned char byte) {
  if (lead == 0xE0) return byte >= 0xA0 && byte <= 0xBF;
  if (lead == 0xED) return byte >= 0x80 && byte <= 0x9F;
  if (lead == 0xF0) return byte >= 0x90 && byte <= 0xBF;
  if (lead == 0xF4) return byte >= 0x80 && byte <= 0x8F;
  return byte >= 0x80 && byte <= 0xBF;
}

// Returns the number of bytes from `at` that are a prefix of a valid sequence; the full length if
// the sequence is complete.
std::size_t valid_prefix(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t length = sequence_length(lead);
  std::size_t have = length == 0 ? 0 : 1;
  while (have > 0 && have < length && at + have < text.size()) {
    const auto byte = static_cast<unsigned char>(text[at + have]);
    if (have == 1 ? !second_ok(lead, byte) : (byte & 0xC0) != 0x80) break;
    ++have;
  }
  return have;
}

bool whole(std::string_view text, std::size_t at, std::size_t prefix) {
  return prefix > 0 && prefix == sequence_length(static_cast<unsigned char>(text[at]));
}

// Returns the candidate with the smallest edit distance, if the distance is small enough.
std::optional<std::string> nearest_spelling(const std::string& wanted,
                                            std::span<const std::string> candidates) {
  const std::size_t limit = std::max<std::size_t>(1, wanted.size() / 3);
  std::optional<std::string> best;
  std::size_t best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(candidate.size(), wanted.size());
    if (longer - std::min(candidate.size(), wanted.size()) >= best_distance) continue;
    const std::size_t d = distance(wanted, lower(candidate));
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

// Splits a name at punctuation and spaces.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    const bool inside = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c & 0x80) != 0;
    if (inside) {
      out.back() += c;
    } else if (!out.back().empty()) {
      out.emplace_back();
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

bool has_words_of(std::string_view candidate, std::string_view wanted) {
  const std::vector<std::string> has = words_of(candidate), asked = words_of(wanted);
  return !asked.empty() && std::all_of(asked.begin(), asked.end(), [&](const std::string& word) {
    return std::find(has.begin(), has.end(), word) != has.end();
  });
}

}  // namespace

std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates) {
  const std::string wanted = lower(name);
  auto typo = nearest_spelling(wanted, candidates);
  if (wanted.size() < 3) return typo;
  // A missing letter at the end is a better match than a longer name.
  if (typo && lower(*typo).starts_with(wanted)) return typo;
  for (const std::string& candidate : candidates) {
    if (lower(candidate).starts_with(wanted)) return candidate;
  }
  for (const std::string& candidate : candidates) {
    if (has_words_of(lower(candidate), wanted)) return candidate;
  }
  return typo;
}

std::string suggestion(std::string_view name, std::span<const std::string> candidates) {
  if (const auto near = nearest(name, candidates)) return "did you mean \"" + *near + "\"?";
  if (candidates.empty()) return "";
  constexpr std::size_t kMost = 12;
  const auto shown = candidates.first(std::min(kMost, candidates.size()));
  std::string out = "expected one of: " + join(shown, ", ");
  if (candidates.size() > kMost) out += ", ...";
  return out;
}

std::string bytes(std::uint64_t count) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (count < 1024) return fmt::format("{} B", count);
  double value = static_cast<double>(count);
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0; it belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string count(double number) {
  constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  const double size = std::abs(number);
  if (size < 1000.0) {
    return number == std::floor(number) ? fmt::format("{:.0f}", number)
                                        : fmt::format("{:.1f}", number);
  }
  double value = number;
  std::size_t unit = 0;
  while (std::abs(value) >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 1.0) return fmt::format("{:.0f}ms", seconds * 1e3);
  // Capped at about a thousand years, so that the integer below stays in range.
  const auto total = std::llround(std::min(seconds, 3e10));
  const std::int64_t s = total % 60, m = total / 60 % 60, h = total / 3600;
  if (h >= 48) return fmt::format("{}d{:02}h", h / 24, h % 24);
  if (h > 0) return fmt::format("{}h{:02}m", h, m);
  if (m > 0) return fmt::format("{}m{:02}s", m, s);
  return fmt::format("{}s", s);
}

std::string number(double value) {
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

double unsigned_nan(double value) {
  return std::isnan(value) ? std::fabs(value) : value;
}

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string join_some(std::span<const std::string> parts, std::string_view separator) {
  constexpr std::size_t kMost = 8;
  if (parts.size() <= kMost) return join(parts, separator);
  return join(parts.first(kMost), separator) + fmt::format(" and {} more", parts.size() - kMost);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    out.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower_char);
  return out;
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (at + 8 <= text.size()) {  // runs of ASCII, eight bytes at a time
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t prefix = valid_prefix(text, at);
    if (!whole(text, at, prefix)) return at;
    at += prefix;
  }
  return std::nullopt;
}

std::size_t incomplete_utf8_tail(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::size_t at = text.size() - back;
    const auto byte = static_cast<unsigned char>(text[at]);
    if ((byte & 0xC0) == 0x80) continue;
    return sequence_length(byte) > back && valid_prefix(text, at) == back ? back : 0;
  }
  return 0;
}

std::string printable(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string out;
  out.reserve(valid.size());
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    const auto next = static_cast<unsigned char>(i + 1 < valid.size() ? valid[i + 1] : '\0');
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F: C1 controls
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      out += valid[i];
    }
  }
  return out;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t prefix = valid_prefix(text, at);
    if (whole(text, at, prefix)) {
      out += text.substr(at, prefix);
    } else {
      out += "\xEF\xBF\xBD";
    }
    at += std::max<std::size_t>(prefix, 1);
  }
  return out;
}

}  // namespace tessera::text
