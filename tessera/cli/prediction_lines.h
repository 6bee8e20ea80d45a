// SPDX-License-Identifier: Apache-2.0
// Lines of predictions: each has the columns of its record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

/// Adds the members of a record to an object. A member that the object already has is called
/// "given_" + its name.
void add_members_of(json::Value& line, const json::Value& record);

/// One prediction with its record, as an object: "row", the prediction's members, then the
/// record's, as add_members_of() adds them. `record`: null if unknown.
json::Value prediction_line(std::int64_t row, const json::Value& record, json::Value prediction);

/// Writes such objects as a table. The first one has the columns: its members, and for an object
/// such as "scores" one for each of its members, "scores.sad". Lists are written as JSON.
class PredictionTable {
 public:
  /// `separator`: a comma or a tab.
  explicit PredictionTable(char separator) : separator_(separator) {}
  /// The separator for a file of this name; nothing if it is not a table.
  static std::optional<char> separator_of(std::string_view path);
  /// The rows of a line, before the first one that of the names; each ends with a line end.
  [[nodiscard]] std::string rows_of(const json::Value& line);

 private:
  [[nodiscard]] std::string row_of(const std::vector<std::string>& cells) const;

  char separator_;
  std::vector<std::string> names_;
};

}  // namespace tessera::cli
