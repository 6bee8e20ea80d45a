// SPDX-License-Identifier: Apache-2.0
// Apache Arrow: the stream format, in which Hugging Face's datasets are saved, and the file format
// (Feather version 2). Source: "Arrow columnar format", IPC.
#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/data/record_formats/arrow_columns.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

constexpr std::string_view kFileMagic = "ARROW1";
constexpr std::int64_t kMostRowsWithoutColumns = 1'000'000;

// Numbers of the union MessageHeader in Message.fbs.
enum class Header : std::uint8_t { None, Schema, DictionaryBatch, RecordBatch };

class ArrowReader {
 public:
  ArrowReader(const RecordText& text, const RecordSink& sink)
      : sink_(sink), place_(text.name), rest_(text.bytes) {
    if (!rest_.starts_with(kFileMagic)) return;
    constexpr std::size_t kPadded = 8;
    take(kPadded);
  }

  void read() {
    while (auto message = next()) {
      const auto header = static_cast<Header>(message->table.scalar<std::uint8_t>(1, 0));
      const auto details = message->table.table(2);
      if (!details) refuse("a message is empty");
      if (header == Header::Schema) {
        if (!fields_.empty()) refuse("the columns are described twice");
        fields_ = arrow::fields_of(*details, place_);
        has_schema_ = true;
      } else if (header == Header::DictionaryBatch) {
        read_dictionary(*details, message->body);
      } else if (header == Header::RecordBatch) {
        read_batch(*details, message->body);
      } else {
        refuse("a message has no records");
      }
    }
    if (!has_schema_) refuse("there is no description of the columns");
  }
  /// The value of a key in the metadata of the schema, which is the first message; empty: there is
  /// none.
  std::string value_of_key(std::string_view key) {
    const auto message = next();
    if (!message) return {};
    const auto schema = message->table.table(2);
    if (static_cast<Header>(message->table.scalar<std::uint8_t>(1, 0)) != Header::Schema || !schema)
      return {};
    constexpr unsigned kMetadata = 2;
    const FlatTable::Vector pairs = schema->vector(kMetadata, 4);
    for (std::uint64_t i = 0; i < pairs.count; ++i) {
      const FlatTable pair = schema->item(pairs, i);
      if (pair.text(0) == key) return std::string(pair.text(1));
    }
    return {};
  }

 private:
  struct Message {
    FlatTable table;
    std::string_view body;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: {}", place_, what),
                "the file is damaged: fetch it again");
  }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) refuse("the file ends within a message");
    const std::string_view out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return out;
  }
  std::uint32_t word() {
    std::uint32_t out = 0;
    std::memcpy(&out, take(sizeof(out)).data(), sizeof(out));
    return out;
  }

  /// Returns nothing at the end: at a length of 0, or at the end of the file of a stream.
  std::optional<Message> next() {
    constexpr std::uint32_t kContinues = 0xffffffffU;
    if (rest_.empty()) return std::nullopt;
    std::uint32_t length = word();
    if (length == kContinues) length = word();  // older writers omit this marker
    if (length == 0) return std::nullopt;
    const std::string_view described = take(length);
    FlatTable table = FlatTable::root(described, place_);
    const auto bytes = table.scalar<std::int64_t>(3, 0);
    if (bytes < 0) refuse("a message has no length");
    const std::string_view body = take(static_cast<std::uint64_t>(bytes));
    return Message{std::move(table), body};
  }

  void read_batch(const FlatTable& batch, std::string_view body) {
    if (!has_schema_) refuse("records come before the description of their columns");
    std::deque<std::string> kept;
    const auto columns = arrow::columns_of(fields_, batch, body, dictionaries_, kept, place_);
    const auto rows = batch.scalar<std::int64_t>(0, 0);
    for (const arrow::Column& column : columns) {
      if (column.length < rows) refuse("a column is shorter than its batch");
    }
    if (columns.empty() && rows > kMostRowsWithoutColumns) refuse("there are rows without columns");
    for (std::int64_t row = 0; row < rows; ++row) {
      ++row_;
      const std::string place = fmt::format("{}:{}", place_, row_);
      try {
        json::Value record = json::Value::object();
        for (const arrow::Column& column : columns) {
          if (column.field->kind != arrow::Kind::Skipped)
            record.members().emplace_back(column.field->name, column.value(row, place));
        }
        sink_.value(std::move(record), row_);
      } catch (const Error& error) {
        sink_.bad(error);
      }
    }
  }

  void read_dictionary(const FlatTable& details, std::string_view body) {
    const auto id = details.scalar<std::int64_t>(0, 0);
    const arrow::Field* const field = find_dictionary(fields_, id);
    const auto batch = details.table(1);
    if (field == nullptr || !batch) refuse("a dictionary belongs to no column");
    std::deque<std::string> kept;
    const std::vector<arrow::Field> fields = {*field};  // the columns point to it
    const auto columns = arrow::columns_of(fields, *batch, body, dictionaries_, kept, place_);
    // Copied, because columns of earlier batches keep their dictionary.
    const bool adds = details.scalar<std::uint8_t>(2, 0) != 0;
    auto values = std::make_shared<std::vector<json::Value>>();
    const auto known = dictionaries_.find(id);
    if (adds && known != dictionaries_.end()) *values = *known->second;
    for (std::int64_t row = 0; row < columns.front().length; ++row)
      values->push_back(columns.front().value(row, place_));
    dictionaries_[id] = std::move(values);
  }
  static const arrow::Field* find_dictionary(const std::vector<arrow::Field>& fields,
                                             std::int64_t id) {
    for (const arrow::Field& field : fields) {
      if (field.dictionary == id) return field.values.get();
      const arrow::Field* found = find_dictionary(field.children, id);
      if (found == nullptr && field.values) found = find_dictionary(field.values->children, id);
      if (found != nullptr) return found;
    }
    return nullptr;
  }

  const RecordSink& sink_;
  std::string place_;
  std::string_view rest_;
  std::vector<arrow::Field> fields_;
  bool has_schema_ = false;
  arrow::Dictionaries dictionaries_;
  std::int64_t row_ = 0;
};

void read_arrow(const RecordText& text, const RecordSink& sink) {
  TESSERA_REQUIRE(!text.bytes.starts_with(kFeather1),
                  Data,
                  text.name + " is of Feather's version 1, which is not read",
                  fmt::format(fmt::runtime(kFeather1Fix), text.name));
  ArrowReader(text, sink).read();
}

std::string arrow_metadata(const RecordText& text) {
  if (text.bytes.starts_with(kFeather1)) return {};
  const RecordSink none;
  return ArrowReader(text, none).value_of_key("huggingface");
}

TESSERA_RECORD_FORMAT(arrow,
                      {.extensions = {".arrow", ".feather", ".ipc"},
                       .read = read_arrow,
                       .datasets_metadata = arrow_metadata});

}  // namespace
}  // namespace tessera::data
