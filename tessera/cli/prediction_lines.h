// SPDX-License-Identifier: Apache-2.0
// Lines of predictions: each has the columns of its record.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::cli {

/// Adds the members of a record to an object. A member that the object already has is called
/// "given_" + its name.
void add_members_of(json::Value& line, const json::Value& record);

/// One prediction with its record, as an object: "row", the prediction's members, then the
/// record's, as add_members_of() adds them. `record`: null if unknown.
json::Value prediction_line(std::int64_t row, const json::Value& record, json::Value prediction);

/// Puts predictions into the order of the records of a file. A record without a prediction, because
/// it could not be read, has a line too, in which the members of the others are null; so that line
/// i is that of record i.
class PredictionsByRecord {
 public:
  /// `records`: all records of the file, null for one that is no object; empty if they are unknown:
  /// then there are only lines of predictions. `made`: the number of lines that are there already.
  PredictionsByRecord(const std::vector<json::Value>& records,
                      std::int64_t made,
                      std::function<void(const json::Value& line)> write)
      : records_(records), next_(made), write_(std::move(write)) {}
  /// Adds the prediction of a record; the calls are in the order of the records. One of a line that
  /// is there already is only remembered.
  void add(std::int64_t row, const json::Value& prediction);
  /// Writes the lines behind the last prediction.
  void finish();

 private:
  void write_nulls(std::int64_t end);
  [[nodiscard]] json::Value record(std::int64_t row) const;

  const std::vector<json::Value>& records_;
  std::int64_t next_;
  std::function<void(const json::Value& line)> write_;
  json::Value last_;  ///< the last prediction
};

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
