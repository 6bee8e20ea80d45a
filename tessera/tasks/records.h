// SPDX-License-Identifier: Apache-2.0
// Records: the lines of .jsonl files, one JSON object each.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::tasks {

/// How a record is read.
struct RecordFields {
  std::string text = "text", label = "label";
  bool replace_invalid_utf8 = false;  ///< by U+FFFD, in place of an error
};

/// A line of a file.
struct Line {
  std::string_view text;
  std::string place;  ///< "train.jsonl:12"
};

/// Error{Data} with the line's place.
[[noreturn]] void refuse(const Line& line, const std::string& what, std::string fix);

/// Calls fn(line) for every line of the files that is not blank; returns the number of blank ones.
/// Error{Data} for a file that is no .jsonl.
std::int64_t for_each_line(const std::vector<std::string>& files,
                           const std::function<void(const Line&)>& fn);

/// The object on a line; `replaced` counts those that were no UTF-8. Error{Data} for another value.
json::Value parse_record(const Line& line, const RecordFields& fields, std::int64_t& replaced);

/// A member of the record. Error{Data} lists those that are there, and says that task.params.OPTION
/// names the one that is meant.
const json::Value& member(const Line& line,
                          const json::Value& record,
                          const std::string& field,
                          const char* option);

}  // namespace tessera::tasks
