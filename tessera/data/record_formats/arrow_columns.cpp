// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/record_formats/arrow_columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/record_formats/blocks.h"

namespace tessera::data::arrow {
namespace {

constexpr int kMostLevels = 32;
constexpr std::int64_t kMostRows = std::int64_t{1} << 40;
/// Most rows of columns without data.
constexpr std::int64_t kMostEmptyRows = 1'000'000;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 36;

// Numbers of the union Type in Schema.fbs.
enum class Type : std::uint8_t {
  None,
  Null,
  Int,
  FloatingPoint,
  Binary,
  Utf8,
  Bool,
  Decimal,
  Date,
  Time,
  Timestamp,
  Interval,
  List,
  Struct,
  Union,
  FixedSizeBinary,
  FixedSizeList,
  Map,
  Duration,
  LargeBinary,
  LargeUtf8,
  LargeList,
};

[[noreturn]] void refuse(const std::string& place, const std::string& what, const char* fix) {
  throw Error(Error::Kind::Data, fmt::format("{}: {}", place, what), fix);
}
[[noreturn]] void refuse_damage(const std::string& place, const std::string& what) {
  refuse(place, what, "the file is damaged: fetch it again");
}

void set_number(Field& out, Kind kind, int bits, bool has_sign) {
  out.kind = kind;
  out.bits = bits;
  out.has_sign = has_sign;
  out.buffers = 2;
}

/// Reads the fields that belong to a type.
void read_type(const FlatTable& field, Type type, Field& out, const std::string& place) {
  const auto details = field.table(3);
  const auto of = [&](unsigned index, auto absent) {
    return details ? details->scalar(index, absent) : absent;
  };
  switch (type) {
    case Type::Null:
      out.kind = Kind::Null;
      out.buffers = 0;
      return;
    case Type::Bool:
      out.kind = Kind::Bool;
      out.buffers = 2;
      return;
    case Type::Int:
      set_number(out, Kind::Int, of(0, std::int32_t{0}), of(1, std::uint8_t{0}) != 0);
      if (out.bits == 8 || out.bits == 16 || out.bits == 32 || out.bits == 64) return;
      break;
    case Type::FloatingPoint:
      set_number(out, Kind::Float, 16 << of(0, std::int16_t{0}), true);
      if (out.bits == 16 || out.bits == 32 || out.bits == 64) return;
      break;
    case Type::Date:
      return set_number(out, Kind::Int, of(0, std::int16_t{1}) == 0 ? 32 : 64, true);
    case Type::Time:
      return set_number(out, Kind::Int, of(1, std::int32_t{32}) == 32 ? 32 : 64, true);
    case Type::Timestamp:
    case Type::Duration:
      return set_number(out, Kind::Int, 64, true);
    case Type::Utf8:
    case Type::LargeUtf8:
      out.kind = Kind::Text;
      out.bits = type == Type::Utf8 ? 32 : 64;
      out.buffers = 3;
      return;
    case Type::Binary:
    case Type::LargeBinary:
      out.kind = Kind::Skipped;
      out.buffers = 3;
      return;
    case Type::FixedSizeBinary:
      out.kind = Kind::Skipped;
      out.buffers = 2;
      return;
    case Type::List:
    case Type::LargeList:
      out.kind = Kind::List;
      out.bits = type == Type::List ? 32 : 64;
      out.buffers = 2;
      return;
    case Type::Map:
      out.kind = Kind::List;
      out.bits = 32;
      out.buffers = 2;
      return;
    case Type::FixedSizeList:
      out.kind = Kind::FixedList;
      out.size = of(0, std::int32_t{0});
      out.buffers = 1;
      if (out.size >= 0) return;
      break;
    case Type::Struct:
      out.kind = Kind::Struct;
      out.buffers = 1;
      return;
    default:
      break;
  }
  refuse(place,
         fmt::format("the column \"{}\" has type {} of Arrow, which is not read",
                     out.name,
                     static_cast<int>(type)),
         "leave the column out, or write .jsonl");
}

Field field_of(const FlatTable& table, int level, const std::string& place) {
  if (level > kMostLevels) refuse_damage(place, "columns lie in too many levels of each other");
  Field out;
  out.name = table.text(0);
  read_type(table, static_cast<Type>(table.scalar<std::uint8_t>(2, 0)), out, place);
  const FlatTable::Vector children = table.vector(5, 4);
  const bool list = out.kind == Kind::List || out.kind == Kind::FixedList;
  if (children.count > budget::kColumns || (list && children.count != 1) ||
      (!list && out.kind != Kind::Struct && children.count != 0))
    refuse_damage(place, fmt::format("the column \"{}\" has {} parts", out.name, children.count));
  for (std::uint64_t i = 0; i < children.count; ++i)
    out.children.push_back(field_of(table.item(children, i), level + 1, place));
  const auto dictionary = table.table(4);
  if (!dictionary) return out;
  Field places;
  places.name = out.name;
  const auto type = dictionary->table(1);
  set_number(places,
             Kind::Int,
             type ? type->scalar<std::int32_t>(0, 0) : 32,
             !type || type->scalar<std::uint8_t>(1, 0) != 0);
  if (places.bits != 8 && places.bits != 16 && places.bits != 32 && places.bits != 64)
    refuse_damage(place,
                  fmt::format("the places in the dictionary of \"{}\" are not numbers", out.name));
  places.dictionary = dictionary->scalar<std::int64_t>(0, 0);
  places.values = std::make_shared<const Field>(std::move(out));
  return places;
}

template <class T>
T element(std::string_view data, std::int64_t row) {
  T out;
  std::memcpy(&out, data.data() + static_cast<std::size_t>(row) * sizeof(T), sizeof(T));
  return out;
}

std::int64_t offset_at(const Column& column, std::int64_t row) {
  return column.field->bits == 32 ? element<std::int32_t>(column.offsets, row)
                                  : element<std::int64_t>(column.offsets, row);
}

json::Value whole_number(const Column& column, std::int64_t row) {
  const std::string_view data = column.data;
  const bool has_sign = column.field->has_sign;
  switch (column.field->bits) {
    case 8:
      return json::Value::integer(has_sign ? element<std::int8_t>(data, row)
                                           : element<std::uint8_t>(data, row));
    case 16:
      return json::Value::integer(has_sign ? element<std::int16_t>(data, row)
                                           : element<std::uint16_t>(data, row));
    case 32:
      return json::Value::integer(has_sign ? std::int64_t{element<std::int32_t>(data, row)}
                                           : std::int64_t{element<std::uint32_t>(data, row)});
    default:
      break;
  }
  const auto value = element<std::int64_t>(data, row);
  if (has_sign || value >= 0) return json::Value::integer(value);
  return json::Value::number(static_cast<double>(static_cast<std::uint64_t>(value)));
}

json::Value fraction(const Column& column, std::int64_t row) {
  double value = 0;
  if (column.field->bits == 64) value = element<double>(column.data, row);
  if (column.field->bits == 32) value = element<float>(column.data, row);
  if (column.field->bits == 16) value = from_fp16(element<std::uint16_t>(column.data, row));
  return std::isfinite(value) ? json::Value::number(value) : json::Value();
}

/// Takes the nodes and buffers of a batch in the order of the columns.
class Batch {
 public:
  Batch(const FlatTable& table,
        std::string_view body,
        const Dictionaries& dictionaries,
        std::deque<std::string>& kept,
        const std::string& place)
      : table_(table),
        nodes_(table.vector(1, 16)),
        buffers_(table.vector(2, 16)),
        body_(body),
        dictionaries_(dictionaries),
        kept_(kept),
        place_(place) {
    const auto compression = table.table(3);
    if (compression) codec_ = compression->scalar<std::int8_t>(0, 0);
    if (codec_ && *codec_ != 0 && *codec_ != 1) refuse_damage(place_, "an unknown compression");
  }

  Column take(const Field& field) {
    Column out;
    out.field = &field;
    if (node_ == nodes_.count) refuse_damage(place_, "a batch lacks columns");
    out.length = table_.load<std::int64_t>(nodes_.begin + 16 * node_++);
    if (out.length < 0 || out.length > kMostRows) refuse_damage(place_, "a column has no length");
    if (field.buffers > 0) out.nulls = bits(buffer(), out.length, /*may_be_empty=*/true);
    if (field.dictionary) {
      const auto found = dictionaries_.find(*field.dictionary);
      if (found == dictionaries_.end()) refuse_damage(place_, "a dictionary is not there");
      out.dictionary = found->second;
    }
    read_data(field, out);
    for (const Field& child : field.children)
      out.children.push_back(take(child));
    check_children(field, out);
    return out;
  }

 private:
  /// Rejects rows without data, and data that several rows share: so the file's bytes limit the
  /// size of the result.
  void check_children(const Field& field, const Column& column) const {
    const bool bare = field.kind == Kind::Null || field.kind == Kind::Skipped ||
                      (field.kind == Kind::Struct && column.children.empty()) ||
                      (field.kind == Kind::FixedList && field.size == 0);
    if (bare && column.length > std::max<std::int64_t>(kMostEmptyRows, 8 * std::ssize(body_)))
      refuse_damage(place_, "a column has more rows than data");
    for (const Column& child : column.children) {
      const bool fits = field.kind == Kind::Struct ? column.length <= child.length
                        : field.kind == Kind::List
                            ? ascends(column, child.length)
                            : field.size == 0 || column.length <= child.length / field.size;
      if (!fits) refuse_damage(place_, "a part of a column is too short");
    }
  }
  /// Returns whether offsets never decrease and stay within `end`.
  static bool ascends(const Column& column, std::int64_t end) {
    std::int64_t last = 0;
    for (std::int64_t row = 0; column.length > 0 && row <= column.length; ++row) {
      const std::int64_t at = offset_at(column, row);
      if (at < last || at > end) return false;
      last = at;
    }
    return true;
  }

  std::string_view buffer() {
    if (buffer_ == buffers_.count) refuse_damage(place_, "a batch lacks data");
    const std::uint64_t at = buffers_.begin + 16 * buffer_++;
    const auto begin = table_.load<std::int64_t>(at), size = table_.load<std::int64_t>(at + 8);
    const auto all = static_cast<std::int64_t>(body_.size());
    if (begin < 0 || size < 0 || begin > all || size > all - begin)
      refuse_damage(place_, "data lies outside of its batch");
    const std::string_view stored =
        body_.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    if (!codec_ || stored.empty()) return stored;
    if (stored.size() < 8) refuse_damage(place_, "a compressed block is damaged");
    const auto wide = element<std::int64_t>(stored, 0);
    if (wide == -1) return stored.substr(8);
    if (wide < 0 || wide > kMostBytes) refuse_damage(place_, "a compressed block is damaged");
    const auto bytes = static_cast<std::size_t>(wide);
    kept_.push_back(*codec_ == 0 ? lz4_frame(stored.substr(8), bytes, place_)
                                 : zstd_block(stored.substr(8), bytes, place_));
    return kept_.back();
  }

  std::string_view elements(std::string_view data, std::int64_t count, std::int64_t bytes) const {
    if (static_cast<std::int64_t>(data.size()) / bytes < count)
      refuse_damage(place_, "a column is shorter than its batch");
    return data;
  }
  std::string_view bits(std::string_view data, std::int64_t count, bool may_be_empty) const {
    if (may_be_empty && data.empty()) return data;
    return elements(data, (count + 7) / 8, 1);
  }

  void read_data(const Field& field, Column& out) {
    switch (field.kind) {
      case Kind::Bool:
        out.data = bits(buffer(), out.length, /*may_be_empty=*/false);
        return;
      case Kind::Int:
      case Kind::Float:
        out.data = elements(buffer(), out.length, field.bits / 8);
        return;
      case Kind::Text:
      case Kind::List:
        // A column without rows may have no offsets.
        out.offsets = elements(buffer(), out.length == 0 ? 0 : out.length + 1, field.bits / 8);
        if (field.kind != Kind::Text) return;
        out.data = buffer();
        if (!ascends(out, std::ssize(out.data)))
          refuse_damage(place_,
                        fmt::format("the text of \"{}\" lies outside of the file", field.name));
        return;
      case Kind::Skipped:
        for (int i = 1; i < field.buffers; ++i)
          buffer();
        return;
      default:
        return;
    }
  }

  const FlatTable& table_;
  FlatTable::Vector nodes_, buffers_;
  std::string_view body_;
  const Dictionaries& dictionaries_;
  std::deque<std::string>& kept_;
  const std::string& place_;
  std::optional<std::int8_t> codec_;
  std::uint64_t node_ = 0, buffer_ = 0;
};

}  // namespace

std::vector<Field> fields_of(const FlatTable& schema, const std::string& place) {
  if (schema.scalar<std::int16_t>(0, 0) != 0)
    refuse(place, "its numbers have the bytes of another machine", "write .jsonl");
  const FlatTable::Vector fields = schema.vector(1, 4);
  if (fields.count > budget::kColumns)
    refuse(place, fmt::format("has {} columns", fields.count), "leave out some of them");
  std::vector<Field> out;
  for (std::uint64_t i = 0; i < fields.count; ++i)
    out.push_back(field_of(schema.item(fields, i), 1, place));
  return out;
}

json::Value Column::value(std::int64_t row, const std::string& place) const {
  const auto byte = static_cast<std::size_t>(row / 8);
  const auto bit = static_cast<unsigned>(row % 8);
  const auto is_set = [&](std::string_view bits) {
    return ((static_cast<unsigned char>(bits[byte]) >> bit) & 1U) != 0;
  };
  if (!nulls.empty() && !is_set(nulls)) return {};
  if (dictionary != nullptr) {
    const auto at = whole_number(*this, row).as_integer();
    if (!at || *at < 0 || *at >= std::ssize(*dictionary))
      refuse_damage(place, fmt::format("\"{}\" leads out of its dictionary", field->name));
    return (*dictionary)[static_cast<std::size_t>(*at)];
  }
  switch (field->kind) {
    case Kind::Bool:
      return json::Value::boolean(is_set(data));
    case Kind::Int:
      return whole_number(*this, row);
    case Kind::Float:
      return fraction(*this, row);
    case Kind::Text: {
      const std::int64_t begin = offset_at(*this, row), end = offset_at(*this, row + 1);
      const std::string_view text =
          data.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      if (text::find_invalid_utf8(text))
        refuse(
            place, fmt::format("the text of \"{}\" is not UTF-8", field->name), "write it again");
      return json::Value::string(std::string(text));
    }
    case Kind::List:
    case Kind::FixedList: {
      const bool fixed = field->kind == Kind::FixedList;
      const std::int64_t begin = fixed ? row * field->size : offset_at(*this, row),
                         end = fixed ? begin + field->size : offset_at(*this, row + 1);
      const Column& items = children.front();
      json::Value out = json::Value::array();
      for (std::int64_t i = begin; i < end; ++i)
        out.push_back(items.value(i, place));
      return out;
    }
    case Kind::Struct: {
      json::Value out = json::Value::object();
      for (const Column& child : children) {
        if (child.field->kind != Kind::Skipped)
          out.members().emplace_back(child.field->name, child.value(row, place));
      }
      return out;
    }
    default:
      return {};
  }
}

std::vector<Column> columns_of(const std::vector<Field>& fields,
                               const FlatTable& batch,
                               std::string_view body,
                               const Dictionaries& dictionaries,
                               std::deque<std::string>& kept,
                               const std::string& place) {
  Batch reader(batch, body, dictionaries, kept, place);
  std::vector<Column> out;
  for (const Field& field : fields)
    out.push_back(reader.take(field));
  return out;
}

}  // namespace tessera::data::arrow
