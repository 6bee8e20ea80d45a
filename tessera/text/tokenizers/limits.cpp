// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/limits.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/tokenizers/models.h"

namespace tessera::text::tokenizers {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 24;

std::int64_t length_of(const Encoding& encoding) {
  return static_cast<std::int64_t>(encoding.ids.size());
}

std::int64_t count(const Part& part, const char* key, std::int64_t otherwise) {
  const std::int64_t value = part.integer(key, otherwise);
  if (value < 0 || value > kLongest)
    refuse_part(part.where(), fmt::format("has the {} {}", key, value));
  return value;
}

bool is_left(const Part& part) {
  const std::string direction = part.text("direction", "Right");
  if (direction != "Left" && direction != "Right")
    refuse_part(part.where(), fmt::format("has the direction \"{}\"", direction));
  return direction == "Left";
}

Truncation read_truncation(const Part& part) {
  Truncation out;
  out.max_length = count(part, "max_length", 512);
  out.left = is_left(part);
  const std::string strategy = part.text("strategy", "LongestFirst");
  if (strategy == "OnlyFirst") {
    out.strategy = Truncation::Strategy::OnlyFirst;
  } else if (strategy == "OnlySecond") {
    out.strategy = Truncation::Strategy::OnlySecond;
  } else if (strategy != "LongestFirst") {
    refuse_part(part.where(), fmt::format("has the strategy \"{}\"", strategy));
  }
  return out;
}

Padding read_padding(const Part& part) {
  Padding out;
  const json& strategy = part.at("strategy");
  if (strategy.is_object()) {
    out.length = count(part.part("strategy"), "Fixed", -1);
  } else if (!strategy.is_string() || strategy.get<std::string>() != "BatchLongest") {
    refuse_part(part.where(), "has a strategy that is neither BatchLongest nor Fixed");
  }
  out.left = is_left(part);
  out.multiple = count(part, "pad_to_multiple_of", 0);
  out.id = static_cast<std::int32_t>(count(part, "pad_id", 0));
  out.type_id = static_cast<std::int32_t>(count(part, "pad_type_id", 0));
  out.token = part.text("pad_token", "[PAD]");
  return out;
}

/// Keeps `length` tokens.
template <class T>
void keep(std::vector<T>& list, std::int64_t length, bool left) {
  if (length >= static_cast<std::int64_t>(list.size())) return;
  if (left) list.erase(list.begin(), list.end() - length);
  list.resize(static_cast<std::size_t>(length));
}
void keep(Encoding& encoding, std::int64_t length, bool left) {
  keep(encoding.ids, length, left);
  keep(encoding.tokens, length, left);
  keep(encoding.offsets, length, left);
  keep(encoding.type_ids, length, left);
}

/// Returns the lengths of a pair truncated to `most` tokens: the longer text loses its excess
/// first.
std::pair<std::int64_t, std::int64_t> longest_first(std::int64_t first,
                                                    std::int64_t second,
                                                    std::int64_t most) {
  std::int64_t shorter = std::min(first, second);
  std::int64_t longer = std::max(shorter, most - shorter);
  if (shorter > most || shorter + longer > most) {
    shorter = most / 2;
    longer = shorter + most % 2;
  }
  return first > second ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

template <class T>
void fill(std::vector<T>& list, std::int64_t count, const T& value, bool left) {
  list.insert(left ? list.begin() : list.end(), static_cast<std::size_t>(count), value);
}

}  // namespace

Limits read_limits(const Part& file) {
  Limits out;
  if (file.find("truncation") != nullptr) out.truncation = read_truncation(file.part("truncation"));
  if (file.find("padding") != nullptr) out.padding = read_padding(file.part("padding"));
  return out;
}

void truncate(std::vector<Encoding>& encodings, const Truncation& how, std::int64_t added) {
  // The library truncates nothing if there is no room for the added tokens.
  if (how.max_length < added) return;
  const std::int64_t most = how.max_length - added;
  std::int64_t all = 0;
  for (const Encoding& encoding : encodings)
    all += length_of(encoding);
  if (all <= most) return;
  if (most == 0) {
    for (Encoding& encoding : encodings)
      keep(encoding, 0, how.left);
    return;
  }
  if (how.strategy == Truncation::Strategy::LongestFirst && encodings.size() == 2) {
    const auto [first, second] =
        longest_first(length_of(encodings[0]), length_of(encodings[1]), most);
    keep(encodings[0], first, how.left);
    keep(encodings[1], second, how.left);
    return;
  }
  const std::size_t which = how.strategy == Truncation::Strategy::OnlySecond ? 1 : 0;
  const std::int64_t rest =
      which < encodings.size() ? length_of(encodings[which]) - (all - most) : 0;
  TESSERA_REQUIRE(rest > 0,
                  Data,
                  fmt::format("the tokenizer's truncation cuts the {} text alone, which is too "
                              "short: {} tokens are {} too many",
                              which == 0 ? "first" : "second",
                              all,
                              all - most),
                  "choose another strategy in the section truncation of tokenizer.json");
  keep(encodings[which], rest, how.left);
}

std::vector<std::uint8_t> pad(Encoding& encoding, const std::optional<Padding>& how) {
  std::vector<std::uint8_t> out(encoding.ids.size(), 1);
  if (!how) return out;
  const std::int64_t length = length_of(encoding);
  std::int64_t wanted = how->length.value_or(length);
  if (how->multiple > 0 && wanted % how->multiple > 0)
    wanted += how->multiple - wanted % how->multiple;
  const std::int64_t missing = std::max<std::int64_t>(0, wanted - length);
  fill(encoding.ids, missing, how->id, how->left);
  fill(encoding.tokens, missing, how->token, how->left);
  fill(encoding.offsets, missing, std::pair<std::int64_t, std::int64_t>(0, 0), how->left);
  fill(encoding.type_ids, missing, how->type_id, how->left);
  fill(out, missing, std::uint8_t{0}, how->left);
  return out;
}

}  // namespace tessera::text::tokenizers
