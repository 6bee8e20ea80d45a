// SPDX-License-Identifier: Apache-2.0
// Columns of Apache Arrow as values of records. Source: the Arrow columnar format 1.x and its
// Schema.fbs, Message.fbs.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/record_formats/flat_table.h"

namespace tessera::data::arrow {

enum class Kind : std::uint8_t { Null, Bool, Int, Float, Text, List, FixedList, Struct, Skipped };

/// A column of the schema.
struct Field {
  std::string name;
  Kind kind = Kind::Null;
  int bits = 0;  ///< of Int and Float; of the offsets of Text and List
  bool has_sign = false;
  std::int64_t size = 0;  ///< of FixedList
  int buffers = 0;        ///< beside that of nulls, and that one too
  std::vector<Field> children;
  std::optional<std::int64_t> dictionary;  ///< its values are places in that dictionary
  std::shared_ptr<const Field> values;     ///< of the dictionary
};

/// The columns that a schema describes. Columns of bytes are Skipped. Error{Data} naming the column
/// for types that have no value in JSON (unions, decimals, intervals), for more than 32 levels and
/// for more than 10,000 columns.
std::vector<Field> fields_of(const FlatTable& schema, const std::string& place);

/// The rows of a column that lie in a batch.
struct Column {
  const Field* field = nullptr;
  std::int64_t length = 0;
  std::string_view nulls;  ///< bits, 1 where there is a value; empty: everywhere
  std::string_view offsets, data;
  std::vector<Column> children;
  std::shared_ptr<const std::vector<json::Value>> dictionary;
  /// Row `row` of `length`. Error{Data} naming `place` for a place that is not in the dictionary,
  /// and for text that is no UTF-8.
  [[nodiscard]] json::Value value(std::int64_t row, const std::string& place) const;
};

using Dictionaries = std::map<std::int64_t, std::shared_ptr<std::vector<json::Value>>>;

/// The columns of a record batch; `kept` holds what was compressed and must outlive them.
/// Error{Data} for buffers that are not there, or shorter than the rows need.
std::vector<Column> columns_of(const std::vector<Field>& fields,
                               const FlatTable& batch,
                               std::string_view body,
                               const Dictionaries& dictionaries,
                               std::deque<std::string>& kept,
                               const std::string& place);

}  // namespace tessera::data::arrow
