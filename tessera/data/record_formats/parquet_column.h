// SPDX-License-Identifier: Apache-2.0
// One column of a row group of a Parquet file: its levels and values. Source: the Parquet format
// 2.10 (Encodings.md, README.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/data/record_formats/thrift.h"

namespace tessera::data::parquet {

/// A leaf of the schema.
struct Leaf {
  std::string name;
  int type = 0;          ///< physical type, as in parquet.thrift
  bool is_text = false;  ///< byte arrays that contain text; others are skipped
  bool is_unsigned = false;
  int most_defined = 0, most_repeated = 0;
  bool skipped = false;
};

/// The values of a column, in order.
class Column {
 public:
  /// `file`: the whole file. `budget`: the number of values that may still be created; reduced by
  /// those that are. Throws Error{Data} naming `place` for damaged files, and for unsupported
  /// encodings and codecs.
  Column(const Leaf& leaf,
         const Thrift& metadata,
         std::string_view file,
         std::int64_t& budget,
         const std::string& place);

  /// Levels of the next value. Throws Error{Data} after the last one.
  [[nodiscard]] int defined() const { return levels_at(defined_); }
  [[nodiscard]] int repeated() const { return levels_at(repeated_); }
  [[nodiscard]] bool at_end() const { return at_ == count_; }
  /// Takes the next value: null unless it is defined.
  json::Value take();

 private:
  using Levels = std::vector<std::uint8_t>;
  [[nodiscard]] int levels_at(const Levels& levels) const;
  void read_page(const Thrift& header, std::string_view bytes, int codec, std::int64_t most);
  void read_values(std::string_view bytes, int encoding, std::int64_t count);
  void read_plain(std::string_view bytes, std::int64_t count, std::vector<json::Value>& out) const;
  void read_delta_lengths(std::string_view& bytes,
                          std::int64_t count,
                          std::vector<std::string>& out) const;
  [[nodiscard]] json::Value text(std::string_view bytes) const;
  [[nodiscard]] json::Value whole_number(std::int64_t value) const;
  [[noreturn]] void refuse(const std::string& what) const;

  const Leaf& leaf_;
  std::string place_;
  std::int64_t count_ = 0, at_ = 0;  ///< counts of levels
  Levels defined_, repeated_;        ///< empty: all 0
  std::vector<json::Value> dictionary_, values_;
  /// For each value: its index in the dictionary, or after it in `values_`.
  std::vector<std::uint32_t> places_;
  std::size_t next_ = 0;
};

}  // namespace tessera::data::parquet
