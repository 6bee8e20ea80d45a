// SPDX-License-Identifier: Apache-2.0
// JSON: one object per line, or a whole file that is a list of objects.
#include <algorithm>
#include <cstdint>
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

void read_lines(const RecordText& text, const RecordSink& sink) {
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.bytes.size();) {
    const std::size_t end = std::min(text.bytes.find('\n', begin), text.bytes.size());
    const std::string_view line = text.bytes.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    budget::require_line(line.size(), text.name, number);
    if (is_blank(line)) {
      sink.blank();
    } else {
      sink.json(line, number);
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
