// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/prediction_lines.h"

#include <algorithm>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::cli {
namespace {

/// The columns of an object and their values.
std::vector<std::pair<std::string, std::string>> cells_of(const json::Value& line) {
  const auto text_of = [](const json::Value& value) {
    if (value.is_null()) return std::string();
    return value.is_string() ? value.as_string() : value.dump();
  };
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, value] : line.members()) {
    if (!value.is_object()) {
      out.emplace_back(name, text_of(value));
      continue;
    }
    for (const auto& [inner, one] : value.members())
      out.emplace_back(name + "." + inner, text_of(one));
  }
  return out;
}

/// The object with null in place of all values; those of an object in it keep their names, which
/// are columns of a table.
json::Value nulls_of(const json::Value& prediction) {
  json::Value out = json::Value::object();
  for (const auto& [name, value] : prediction.members()) {
    json::Value none;
    if (value.is_object()) {
      none = json::Value::object();
      for (const auto& [inner, one] : value.members())
        none[inner] = json::Value();
    }
    out[name] = std::move(none);
  }
  return out;
}

}  // namespace

void add_members_of(json::Value& line, const json::Value& record) {
  for (const auto& [name, value] : record.members()) {
    std::string free = name;
    while (line.find(free) != nullptr)
      free.insert(0, "given_");
    line[free] = value;
  }
}

json::Value prediction_line(std::int64_t row, const json::Value& record, json::Value prediction) {
  json::Value out = json::Value::object({{"row", json::Value::integer(row)}});
  for (auto& [name, value] : prediction.members())
    out[name] = std::move(value);
  if (record.is_object()) add_members_of(out, record);
  return out;
}

void PredictionsByRecord::add(std::int64_t row, const json::Value& prediction) {
  last_ = prediction;
  if (!records_.empty()) {
    if (row < next_) return;
    write_nulls(row);
    next_ = row + 1;
  }
  write_(prediction_line(row, record(row), prediction));
}

void PredictionsByRecord::finish() {
  write_nulls(std::ssize(records_));
}

void PredictionsByRecord::write_nulls(std::int64_t end) {
  for (; next_ < end; ++next_)
    write_(prediction_line(next_, record(next_), nulls_of(last_)));
}

json::Value PredictionsByRecord::record(std::int64_t row) const {
  return records_.empty() ? json::Value() : records_[static_cast<std::size_t>(row)];
}

std::optional<char> PredictionTable::separator_of(std::string_view path) {
  const std::string lower = text::lower(std::string(path));
  if (lower.ends_with(".csv")) return ',';
  return lower.ends_with(".tsv") ? std::optional('\t') : std::nullopt;
}

std::string PredictionTable::row_of(const std::vector<std::string>& cells) const {
  std::string out;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) out += separator_;
    const std::string& cell = cells[i];
    const std::string special = std::string("\"\r\n") + separator_;
    if (cell.find_first_of(special) == std::string::npos) {
      out += cell;
      continue;
    }
    out += '"';
    for (const char c : cell)
      out += c == '"' ? std::string("\"\"") : std::string(1, c);
    out += '"';
  }
  return out + '\n';
}

std::string PredictionTable::rows_of(const json::Value& line) {
  const auto cells = cells_of(line);
  std::string out;
  if (names_.empty()) {
    for (const auto& [name, value] : cells)
      names_.push_back(name);
    out = row_of(names_);
  }
  std::vector<std::string> row;
  for (const std::string& name : names_) {
    const auto found = std::ranges::find(cells, name, &std::pair<std::string, std::string>::first);
    row.push_back(found == cells.end() ? std::string() : found->second);
  }
  return out + row_of(row);
}

}  // namespace tessera::cli
