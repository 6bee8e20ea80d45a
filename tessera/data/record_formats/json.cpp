// SPDX-License-Identifier: Apache-2.0
// JSON: one object per line, or a whole file that is a list of objects.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kSpace) == std::string_view::npos;
}

/// The end of the value that begins with a bracket at `begin`; nothing if it has none before a line
/// that begins with another object, or if the text ends.
std::optional<std::size_t> end_of_value(std::string_view bytes, std::size_t begin) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = begin; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
      if (c == '\n') return std::nullopt;
      continue;
    }
    if (c == '"') in_text = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth == 0) return i + 1;
    if (c == '\n' && i + 1 < bytes.size() && bytes[i + 1] == '{') return std::nullopt;
  }
  return std::nullopt;
}

/// One object a line. A line may also have several objects, and an object several lines whose first
/// ones are indented or begin with something else than an object.
void read_lines(const RecordText& text, const RecordSink& sink) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.bytes.size();) {
    const std::size_t end = std::min(text.bytes.find('\n', begin), text.bytes.size());
    const std::string_view line = text.bytes.substr(begin, end - begin);
    ++number;
    budget::require_line(line.size(), text.name, number);
    if (is_blank(line)) {
      sink.blank();
      begin = end + 1;
      continue;
    }
    const std::size_t first = begin + line.find_first_not_of(kSpace);
    const auto value =
        text.bytes[first] == '{' ? end_of_value(text.bytes, first) : std::optional<std::size_t>();
    // Anything else is an error, which the reader of the line describes.
    const bool more = value && *value < end && !is_blank(text.bytes.substr(*value, end - *value));
    const bool another = more && text.bytes[text.bytes.find_first_not_of(kSpace, *value)] == '{';
    if (!value || (more && !another)) {
      sink.json(line, number);
      begin = end + 1;
      continue;
    }
    const std::string_view object = text.bytes.substr(first, *value - first);
    sink.json(object, number);
    number += std::ranges::count(object, '\n');
    if (another) {
      --number;  // the next object is in the same line
      begin = *value;
    } else {
      begin = std::min(text.bytes.find('\n', *value), text.bytes.size() - 1) + 1;
    }
  }
}

/// True if the first line is a complete object and others follow: .json files often contain lines.
bool holds_lines(std::string_view bytes) {
  const std::size_t begin = bytes.find_first_not_of(kSpace);
  if (begin == std::string_view::npos || bytes[begin] != '{') return false;
  const std::size_t end = bytes.find('\n', begin);
  if (end == std::string_view::npos || is_blank(bytes.substr(end))) return false;
  const std::string_view line = bytes.substr(begin, end - begin);
  const std::size_t last = line.find_last_not_of(kSpace);
  if (line[last] != '}') return false;
  try {
    return json::parse_strict(line, "").is_object();
  } catch (const Error&) {
    return false;
  }
}

/// The list inside an object that wraps one, such as {"version": 1, "data": [...]}.
json::Value* wrapped_list(json::Value& root) {
  json::Value* found = nullptr;
  for (auto& [name, value] : root.members()) {
    const bool list =
        value.is_array() && !value.items().empty() && value.items().front().is_object();
    if (!list) continue;
    if (found != nullptr) return nullptr;
    found = &value;
  }
  return found;
}

void read_whole(const RecordText& text, const RecordSink& sink) {
  if (holds_lines(text.bytes)) {
    read_lines(text, sink);
    return;
  }
  json::Value root;
  try {
    root = json::parse_strict(text.bytes, text.name);
  } catch (const Error& error) {
    throw Error(Error::Kind::Data, error.what(), error.fix());
  }
  json::Value* list = root.is_array() ? &root : nullptr;
  if (root.is_object()) list = wrapped_list(root);
  TESSERA_REQUIRE(list != nullptr,
                  Data,
                  fmt::format("{} is {}, not a list of records", text.name, root.type_name()),
                  "write [{...}, {...}], or one object a line");
  for (json::Value& item : list->items()) {
    const std::int64_t line = item.place.line;
    sink.value(std::move(item), line);
  }
}

TESSERA_RECORD_FORMAT(jsonl, {.extensions = {".jsonl", ".ndjson"}, .read = read_lines});
TESSERA_RECORD_FORMAT(json, {.extensions = {".json"}, .read = read_whole});

}  // namespace
}  // namespace tessera::data
