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
  int bits = 0;  ///< of Int and Float, or of the offsets of Text and List
  bool has_sign = false;
  std::int64_t size = 0;  ///< for FixedList
  int buffers = 0;        ///< number of buffers, including that of nulls
  std::vector<Field> children;
  std::optional<std::int64_t> dictionary;  ///< its values are indices into that dictionary
  std::shared_ptr<const Field> values;     ///< type of the dictionary's values
};

/// Returns the columns that a schema describes. Columns of bytes are Skipped. Throws Error{Data}
/// naming the column for types without a JSON value (unions, decimals, intervals), for more than 32
/// levels and for more than 10,000 columns.
std::vector<Field> fields_of(const FlatTable& schema, const std::string& place);

/// The rows of a column in a batch.
struct Column {
  const Field* field = nullptr;
  std::int64_t length = 0;
  std::string_view nulls;  ///< bits, 1 for rows with a value; empty: all have one
  std::string_view offsets, data;
  std::vector<Column> children;
  std::shared_ptr<const std::vector<json::Value>> dictionary;
  /// Returns row `row` of `length`. Throws Error{Data} naming `place` for an index that is not in
  /// the dictionary, and for invalid UTF-8.
  [[nodiscard]] json::Value value(std::int64_t row, const std::string& place) const;
};

using Dictionaries = std::map<std::int64_t, std::shared_ptr<std::vector<json::Value>>>;

/// Returns the columns of a record batch; `kept` receives decompressed data and must outlive them.
/// Throws Error{Data} for buffers that are missing, or shorter than the rows need.
std::vector<Column> columns_of(const std::vector<Field>& fields,
                               const FlatTable& batch,
                               std::string_view body,
                               const Dictionaries& dictionaries,
                               std::deque<std::string>& kept,
                               const std::string& place);

}  // namespace tessera::data::arrow
