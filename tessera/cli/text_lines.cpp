// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/text_lines.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::cli {

namespace {

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines = text::split(files::read_within(file), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool has_json_lines(const std::string& file) {
  return file.ends_with(".jsonl");
}

/// The first of `fields` that a line of a .jsonl has. `flag`: the option that names the field.
std::string member_of(const json::Value& line,
                      const std::vector<std::string>& fields,
                      const std::string& place,
                      const char* flag) {
  const std::string* other = nullptr;  // the first of them that is there and no text
  for (const std::string& field : fields) {
    const json::Value* found = line.is_object() ? line.find(field) : nullptr;
    if (found == nullptr) continue;
    if (found->is_string()) return found->as_string();
    if (other == nullptr) other = &field;
  }
  TESSERA_REQUIRE(
      other == nullptr,
      Data,
      fmt::format("{}: \"{}\" is {}, not a text", place, *other, line.find(*other)->type_name()),
      fmt::format("write a text, remove the line, or name another member with {}", flag));
  throw Error(Error::Kind::Data,
              fmt::format("{} has no text \"{}\"", place, text::join(fields, "\" or \"")),
              fmt::format("name the member that holds the text with {}", flag));
}

}  // namespace

std::vector<std::string> read_text_lines(const std::string& file, const std::string& field) {
  std::vector<std::string> out;
  std::vector<std::string> lines = lines_of(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = fmt::format("{}:{}", file, i + 1);
    if (has_json_lines(file)) {
      out.push_back(member_of(json::parse_strict(lines[i], place), {field}, place, "--field"));
    } else {
      TESSERA_REQUIRE(!text::find_invalid_utf8(lines[i]),
                      Data,
                      place + " is not valid UTF-8",
                      "save the file in UTF-8");
      out.push_back(std::move(lines[i]));
    }
  }
  return out;
}

std::vector<LinePair> read_line_pairs(const std::string& file,
                                      const std::vector<std::string>& sources,
                                      const std::vector<std::string>& targets) {
  TESSERA_REQUIRE(has_json_lines(file),
                  Config,
                  file +
                      " has one text in each line, and an encoder with a decoder needs two: one "
                      "that it reads and one that answers it",
                  "write a .jsonl with {\"source\": \"...\", \"target\": \"...\"} in each line");
  std::vector<LinePair> out;
  const std::vector<std::string> lines = lines_of(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = fmt::format("{}:{}", file, i + 1);
    const json::Value value = json::parse_strict(lines[i], place);
    out.push_back({member_of(value, sources, place, "--source-field"),
                   member_of(value, targets, place, "--field")});
  }
  return out;
}

}  // namespace tessera::cli
