// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/records.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/data/sources.h"

namespace tessera::tasks {

void refuse(const Line& line, const std::string& what, std::string fix) {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", line.place, what), std::move(fix));
}

std::int64_t for_each_line(const std::vector<std::string>& files,
                           const std::function<void(const Line&)>& fn) {
  std::int64_t blank = 0;
  for (const data::Source& source :
       data::expand_sources(std::vector<std::filesystem::path>(files.begin(), files.end()))) {
    TESSERA_REQUIRE(source.kind == data::Source::Kind::Lines,
                    Data,
                    fmt::format("{} is no .jsonl file", source.path.string()),
                    "give a .jsonl with one object a line, such as {\"text\": \"...\", \"label\": "
                    "\"...\"}");
    const auto file = data::map_source(source.path);
    const std::string_view text = data::without_bom(file->text());
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        ++blank;
      } else {
        fn(Line{line, fmt::format("{}:{}", source.path.string(), number)});
      }
    }
  }
  return blank;
}

json::Value parse_record(const Line& line, const RecordFields& fields, std::int64_t& replaced) {
  std::string clean;
  std::string_view text = line.text;
  if (fields.replace_invalid_utf8 && text::find_invalid_utf8(text)) {
    clean = text::replace_invalid_utf8(text);
    text = clean;
    ++replaced;
  }
  json::Value record;
  try {
    record = json::parse_strict(text, line.place);
  } catch (const Error& error) {
    throw Error(Error::Kind::Data, error.what(), error.fix());
  }
  if (!record.is_object()) {
    refuse(line,
           fmt::format("expected a JSON object, found {}", record.type_name()),
           fmt::format("write {{\"{}\": ..., \"{}\": ...}}", fields.text, fields.label));
  }
  return record;
}

const json::Value& member(const Line& line,
                          const json::Value& record,
                          const std::string& field,
                          const char* option) {
  const json::Value* const found = record.find(field);
  if (found != nullptr) return *found;
  std::vector<std::string> names;
  for (const auto& [name, value] : record.members())
    names.push_back(name);
  refuse(line,
         fmt::format("the record has no \"{}\"", field),
         fmt::format("its fields are {}: set task.params.{} to the one that is meant",
                     names.empty() ? "none" : text::join(names, ", "),
                     option));
}

}  // namespace tessera::tasks
