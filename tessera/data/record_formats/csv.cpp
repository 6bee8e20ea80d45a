// SPDX-License-Identifier: Apache-2.0
// Text tables: fields separated by commas or tabs; the first row has their names (RFC 4180).
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

struct Row {
  std::vector<std::string> cells;
  std::int64_t line = 0;  ///< line of its first byte
};

/// Reads rows one after the other. `quoted_lines`: whether quotes in a tab-separated table may
/// enclose tabs and line ends.
class Rows {
 public:
  Rows(const RecordText& text, char separator, bool quoted_lines)
      : bytes_(text.bytes),
        name_(text.name),
        separator_(separator),
        all_quotes_(separator != '\t' || quoted_lines) {}

  std::optional<Row> next() {
    if (at_ >= bytes_.size()) return std::nullopt;
    Row row;
    row.line = line_;
    while (true) {
      row.cells.push_back(cell());
      if (at_ < bytes_.size() && bytes_[at_] == separator_) {
        ++at_;
        continue;
      }
      end_line();
      return row;
    }
  }

 private:
  std::string cell() {
    const bool quote = at_ < bytes_.size() && bytes_[at_] == '"';
    if (quote && (all_quotes_ || closes_before_the_tab())) return quoted();
    std::size_t end = at_;
    while (end < bytes_.size() && bytes_[end] != separator_ && bytes_[end] != '\n' &&
           bytes_[end] != '\r')
      ++end;
    const std::string_view out = bytes_.substr(at_, end - at_);
    at_ = end;
    return std::string(out);
  }
  /// Tab-separated tables are often written without quoting, and a text may begin with a quote.
  [[nodiscard]] bool closes_before_the_tab() const {
    const std::size_t end = std::min(bytes_.find_first_of("\t\r\n", at_), bytes_.size());
    if (end < at_ + 2 || bytes_[end - 1] != '"') return false;
    std::size_t inner = 0;
    for (std::size_t i = at_ + 1; i + 1 < end; ++i)
      inner += bytes_[i] == '"' ? 1 : 0;
    return inner % 2 == 0;
  }
  std::string quoted() {
    const std::int64_t begin = line_;
    std::string out;
    for (++at_; at_ < bytes_.size(); ++at_) {
      const char c = bytes_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        out += c;
      } else if (at_ + 1 < bytes_.size() && bytes_[at_ + 1] == '"') {
        out += '"';
        ++at_;
      } else {
        ++at_;
        const bool ends = at_ == bytes_.size() || bytes_[at_] == separator_ ||
                          bytes_[at_] == '\n' || bytes_[at_] == '\r';
        TESSERA_REQUIRE(ends,
                        Data,
                        fmt::format("{}:{}: text behind a closing quote", name_, line_),
                        "double the quotes inside of a field: \"\"");
        return out;
      }
    }
    throw Error(Error::Kind::Data,
                fmt::format("{}:{}: the quote is never closed", name_, begin),
                "close it, or double the quotes inside of a field");
  }
  void end_line() {
    if (at_ < bytes_.size() && bytes_[at_] == '\r') ++at_;
    if (at_ < bytes_.size() && bytes_[at_] == '\n') ++at_;
    ++line_;
  }

  std::string_view bytes_;
  const std::string& name_;
  char separator_;
  bool all_quotes_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

enum class ColumnType : std::uint8_t { Integer, Number, Flag, Text };

// "007" is a code, neither an integer nor a number.
bool is_integer(const std::string& cell) {
  std::int64_t value = 0;
  const auto [end, failed] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return failed == std::errc() && end == cell.data() + cell.size() && std::to_string(value) == cell;
}
bool is_number(const std::string& cell) {
  double value = 0;
  const auto [end, failed] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  const std::size_t first = cell.find_first_of("0123456789");
  if (first == std::string::npos) return false;  // such as "nan"
  const bool code = cell[first] == '0' && first + 1 < cell.size() &&
                    std::isdigit(static_cast<unsigned char>(cell[first + 1])) != 0;
  return failed == std::errc() && end == cell.data() + cell.size() && !code;
}
// Other spellings, such as True, remain the texts that they are.
bool is_flag(const std::string& cell) {
  return cell == "true" || cell == "false";
}

/// The common type of all cells of a column, as other table readers determine it, in the rows that
/// have `columns` cells.
ColumnType type_of(const std::vector<Row>& rows, std::size_t column, std::size_t columns) {
  bool any = false, integers = true, numbers = true, flags = true;
  for (const Row& row : rows) {
    if (row.cells.size() != columns || row.cells[column].empty()) continue;
    const std::string& cell = row.cells[column];
    any = true;
    integers = integers && is_integer(cell);
    numbers = numbers && (integers || is_number(cell));
    flags = flags && is_flag(cell);
    if (!numbers && !flags) break;
  }
  if (!any) return ColumnType::Text;
  if (integers) return ColumnType::Integer;
  if (numbers) return ColumnType::Number;
  return flags ? ColumnType::Flag : ColumnType::Text;
}

/// Keeps the spelling, such as 1.50, where JSON has it, for texts of numbers.
json::Value number_of(const std::string& cell) {
  try {
    return json::parse_strict(cell, "a cell");
  } catch (const Error&) {  // such as +1 or .5
    double value = 0;
    std::from_chars(cell.data(), cell.data() + cell.size(), value);
    return json::Value::number(value);
  }
}

json::Value value_of(std::string cell, ColumnType type) {
  if (type == ColumnType::Text) return json::Value::string(std::move(cell));
  if (cell.empty()) return {};
  if (type == ColumnType::Flag) return json::Value::boolean(cell == "true");
  if (type == ColumnType::Integer) {
    std::int64_t value = 0;
    std::from_chars(cell.data(), cell.data() + cell.size(), value);
    return json::Value::integer(value);
  }
  return number_of(cell);
}

/// Gives columns without a name, such as the index that pandas writes, pandas' names.
void name_all(Row& header) {
  for (std::size_t i = 0; i < header.cells.size(); ++i) {
    if (header.cells[i].empty()) header.cells[i] = fmt::format("Unnamed: {}", i);
  }
}

void check_names(const Row& header, const std::string& name) {
  std::vector<std::string> names = header.cells;
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  TESSERA_REQUIRE(twice == names.end(),
                  Data,
                  fmt::format("{}:1: two columns are called \"{}\"", name, *twice),
                  "rename one of them");
}

/// True for a row of GLUE's CoLA, whose files for training have no row of names: the source, 0 or
/// 1, a star where the author gave one, and the sentence.
bool is_row_of_acceptability(const Row& row) {
  return row.cells.size() == 4 && (row.cells[1] == "0" || row.cells[1] == "1") &&
         (row.cells[2].empty() || row.cells[2] == "*");
}

/// A table: its first row, which may be missing, and the others.
struct Table {
  std::optional<Row> header;
  std::vector<Row> rows;
  std::int64_t blank = 0;
  /// True if all rows have as many cells as the first.
  [[nodiscard]] bool even() const {
    return header && std::ranges::all_of(rows, [&](const Row& row) {
             return row.cells.size() == header->cells.size();
           });
  }
};

Table table_of(const RecordText& text, char separator, bool quoted_lines) {
  Rows reader(text, separator, quoted_lines);
  Table out;
  out.header = reader.next();
  while (std::optional<Row> row = reader.next()) {
    if (row->cells.size() == 1 && row->cells[0].empty() && out.header->cells.size() > 1) {
      ++out.blank;
    } else {
      out.rows.push_back(std::move(*row));
    }
  }
  return out;
}

/// A tab-separated table. Some are written without quoting, and their texts may begin with a quote;
/// if the rows then have different numbers of cells, quotes enclose tabs and line ends.
Table tabbed_table(const RecordText& text) {
  Table plain = table_of(text, '\t', /*quoted_lines=*/false);
  if (plain.even() || !plain.header) return plain;
  try {
    Table quoted = table_of(text, '\t', /*quoted_lines=*/true);
    if (quoted.even()) return quoted;
  } catch (const Error&) {
    return plain;  // its quotes enclose nothing
  }
  return plain;
}

void read_table(const RecordText& text, const RecordSink& sink, char separator) {
  if (const auto at = text::find_invalid_utf8(text.bytes)) {
    const auto line = std::ranges::count(text.bytes.substr(0, *at), '\n') + 1;
    throw Error(Error::Kind::Data,
                fmt::format("{}:{}: the file is not UTF-8 from byte {} on", text.name, line, *at),
                "convert it: iconv -t UTF-8");
  }
  auto [header, rows, blank] =
      separator == '\t' ? tabbed_table(text) : table_of(text, separator, /*quoted_lines=*/true);
  if (!header) return;
  if (separator == '\t' && is_row_of_acceptability(*header)) {
    rows.insert(rows.begin(), std::move(*header));
    header->cells = {"source", "label", "star", "sentence"};
  }
  budget::require_count(header->cells.size(),
                        budget::kColumns,
                        text.name + ":1",
                        "columns",
                        "keep the columns that are used");
  name_all(*header);
  check_names(*header, text.name);
  for (; blank > 0; --blank)
    sink.blank();
  std::vector<ColumnType> types;
  for (std::size_t i = 0; i < header->cells.size(); ++i)
    types.push_back(type_of(rows, i, header->cells.size()));
  for (Row& row : rows) {
    if (row.cells.size() != header->cells.size()) {
      sink.bad(Error(Error::Kind::Data,
                     fmt::format("{}:{}: the row has {} fields, and the first row names {}",
                                 text.name,
                                 row.line,
                                 row.cells.size(),
                                 header->cells.size()),
                     fmt::format("separate fields by {}, and put a field that holds one or a "
                                 "quote between quotes",
                                 separator == '\t' ? "tabs" : "commas")));
      continue;
    }
    json::Value record = json::Value::object();
    for (std::size_t i = 0; i < row.cells.size(); ++i)
      record.members().emplace_back(header->cells[i], value_of(std::move(row.cells[i]), types[i]));
    sink.value(std::move(record), row.line);
    row.cells.clear();
  }
}

/// The separator is a comma, unless the column names are separated by semicolons or tabs.
void read_csv(const RecordText& text, const RecordSink& sink) {
  const std::string_view header = text.bytes.substr(0, text.bytes.find_first_of("\r\n"));
  const auto count = [&](char c) { return std::ranges::count(header, c); };
  char separator = ',';
  for (const char other : {';', '\t'}) {
    if (count(separator) == 0 && count(other) > 0) separator = other;
  }
  read_table(text, sink, separator);
}
void read_tsv(const RecordText& text, const RecordSink& sink) {
  read_table(text, sink, '\t');
}

TESSERA_RECORD_FORMAT(csv, {.extensions = {".csv"}, .rows = true, .read = read_csv});
TESSERA_RECORD_FORMAT(tsv, {.extensions = {".tsv"}, .rows = true, .read = read_tsv});

}  // namespace
}  // namespace tessera::data
