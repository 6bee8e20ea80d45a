// SPDX-License-Identifier: Apache-2.0
// CoNLL: a word a line, with its tag as the last of several columns; a blank line ends a sentence.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

constexpr std::string_view kLineSpace = " \t\r";

/// The columns of a line: separated by tabs, if it has any, else by spaces.
std::vector<std::string_view> columns_of_line(std::string_view line) {
  const bool tabs = line.find('\t') != std::string_view::npos;
  std::vector<std::string_view> out;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find_first_of(tabs ? "\t" : " "), line.size());
    const std::string_view column = text::trim(line.substr(0, end));
    if (tabs || !column.empty()) out.push_back(column);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return out;
}

/// True for a comment of CoNLL-U ("# text = ...") and the line between two documents.
bool is_remark(std::string_view line) {
  return line.starts_with("# ") || line.starts_with("-DOCSTART-");
}

/// The words and tags of a sentence.
class Sentence {
 public:
  explicit Sentence(const RecordSink& sink) : sink_(sink) {}
  void add(std::string_view word, std::string_view tag, std::int64_t line) {
    if (words_.items().empty()) line_ = line;
    words_.push_back(json::Value::string(std::string(word)));
    tags_.push_back(json::Value::string(std::string(tag)));
  }
  void end() {
    if (words_.items().empty()) return;
    json::Value record = json::Value::object();
    record["tokens"] = std::exchange(words_, json::Value::array());
    record["tags"] = std::exchange(tags_, json::Value::array());
    sink_.value(std::move(record), line_);
  }

 private:
  const RecordSink& sink_;
  json::Value words_ = json::Value::array(), tags_ = json::Value::array();
  std::int64_t line_ = 0;
};

void read_conll(const RecordText& text, const RecordSink& sink) {
  Sentence sentence(sink);
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.bytes.size();) {
    const std::size_t end = std::min(text.bytes.find('\n', begin), text.bytes.size());
    std::string_view line = text.bytes.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    line = line.substr(0, line.find_last_not_of(kLineSpace) + 1);
    if (line.empty() || is_remark(line)) {
      sentence.end();
      continue;
    }
    const std::vector<std::string_view> columns = columns_of_line(line);
    TESSERA_REQUIRE(columns.size() > 1,
                    Data,
                    fmt::format("{}:{}: the line has one column", text.name, number),
                    "write a word and its tag in each line, and a blank line after a sentence");
    sentence.add(columns.front(), columns.back(), number);
  }
  sentence.end();
}

TESSERA_RECORD_FORMAT(conll, {.extensions = {".conll", ".iob", ".bio"}, .read = read_conll});

}  // namespace
}  // namespace tessera::data
