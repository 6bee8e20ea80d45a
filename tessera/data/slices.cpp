// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/slices.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr const char* kForms = "write NAME[:1000], NAME[10%:20%] or NAME[-100:]";

/// An end of a slice: digits, which `datasets` may group by underscores, and a percent sign.
std::optional<std::int64_t> slice_end(std::string_view word, bool& percent) {
  if (word.empty()) return std::nullopt;
  if (word.ends_with('%')) {
    percent = true;
    word.remove_suffix(1);
  }
  std::string digits(word);
  std::erase(digits, '_');
  std::int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, value);
  TESSERA_REQUIRE(read.ec == std::errc() && read.ptr == end,
                  Config,
                  fmt::format("\"{}\" is not an end of a slice", word),
                  kForms);
  return value;
}

/// Rounds a half to the even number, as Python does.
std::int64_t share_of(std::int64_t percent, std::int64_t count) {
  return static_cast<std::int64_t>(
      std::nearbyint(static_cast<double>(percent) * static_cast<double>(count) / 100.0));
}

}  // namespace

std::optional<Slice> parse_slice(std::string_view brackets) {
  if (brackets.size() < 2 || !brackets.starts_with('[') || !brackets.ends_with(']'))
    return std::nullopt;
  const std::string_view inside = brackets.substr(1, brackets.size() - 2);
  const std::size_t colon = inside.find(':');
  // "[[:digit:]]" and the like are patterns of file names.
  if (colon == std::string_view::npos || inside.find_first_of("[]") != std::string_view::npos)
    return std::nullopt;
  Slice out;
  out.begin = slice_end(inside.substr(0, colon), out.percent);
  out.end = slice_end(inside.substr(colon + 1), out.percent);
  if (!out.percent) return out;
  for (const auto& end : {out.begin, out.end}) {
    TESSERA_REQUIRE(!end || (*end >= -100 && *end <= 100),
                    Config,
                    fmt::format("{}% is not a share of the records", *end),
                    "percentages are -100% to 100%");
  }
  return out;
}

SlicedName cut_slice(const std::string& name) {
  const std::size_t open = name.ends_with(']') ? name.rfind('[') : std::string::npos;
  std::error_code ignored;
  if (open == std::string::npos || open == 0 || std::filesystem::exists(name, ignored))
    return {.name = name};
  try {
    const auto slice = parse_slice(std::string_view(name).substr(open));
    if (!slice) return {.name = name};
    return {.name = name.substr(0, open), .slice = slice};
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", name, error.what()), error.fix());
  }
}

RecordRange range_of(const Slice& slice, std::int64_t count) {
  const auto place = [&](const std::optional<std::int64_t>& end, std::int64_t absent) {
    if (!end) return absent;
    std::int64_t at = slice.percent ? share_of(*end, count) : *end;
    if (at < 0) at = std::max<std::int64_t>(count + at, 0);
    return std::min(at, count);
  };
  RecordRange out{.begin = place(slice.begin, 0), .end = place(slice.end, count)};
  out.end = std::max(out.begin, out.end);
  return out;
}

bool is_fixed(const Slice& slice) {
  return !slice.percent && slice.begin.value_or(0) >= 0 && slice.end.value_or(0) >= 0;
}

std::string slice_text(const std::optional<Slice>& slice) {
  if (!slice) return "";
  const auto text = [&](const std::optional<std::int64_t>& end) {
    return end ? fmt::format("{}{}", *end, slice->percent ? "%" : "") : std::string();
  };
  return fmt::format("[{}:{}]", text(slice->begin), text(slice->end));
}

}  // namespace tessera::data
