// SPDX-License-Identifier: Apache-2.0
// Parquet: rows of columns in pages, with lists and structs. Source: the Parquet format 2.10;
// records are assembled from levels as in Melnik et al. 2010, "Dremel".
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/data/record_formats/parquet_column.h"
#include "tessera/data/record_formats/thrift.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

using parquet::Column;
using parquet::Leaf;

constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::size_t kFooter = 8;  // its length and the magic number
constexpr int kMostDepth = 32;
/// Limits of a row group's values, because runs need almost no bytes: a free number, and values per
/// byte.
constexpr std::int64_t kFreeValues = 16'000'000, kValuesPerByte = 64;

enum class Repetition : std::uint8_t { Required, Optional, Repeated };

/// A node of the schema.
struct Node {
  Leaf leaf;  ///< for nodes without children
  Repetition repetition = Repetition::Required;
  bool is_list = false;  ///< its only child, which repeats, contains the items
  int most_defined = 0, most_repeated = 0;
  std::size_t first_leaf = 0, last_leaf = 0;  ///< leaves [first, last) of this node
  std::vector<Node> children;
};

class ParquetReader {
 public:
  ParquetReader(const RecordText& text, const RecordSink& sink)
      : sink_(sink), place_(text.name), file_(text.bytes) {}

  void read() {
    const Thrift metadata = footer();
    read_schema(metadata.items_at(2));
    for (const Thrift& group : metadata.items_at(4))
      read_group(group);
  }
  /// The value of a key in the metadata of the file; empty: there is none.
  [[nodiscard]] std::string value_of_key(std::string_view key) const {
    const Thrift metadata = footer();
    for (const Thrift& pair : metadata.items_at(5)) {
      if (pair.binary_at(1) == key) return std::string(pair.binary_at(2));
    }
    return {};
  }

 private:
  [[nodiscard]] Thrift footer() const {
    std::uint32_t length = 0;
    const bool ends =
        file_.size() >= kParquetMagic.size() + kFooter && file_.ends_with(kParquetMagic);
    if (ends) std::memcpy(&length, file_.data() + file_.size() - kFooter, sizeof(length));
    if (!ends || length > file_.size() - kFooter) refuse("it ends without a footer");
    std::string_view footer = file_.substr(file_.size() - kFooter - length, length);
    return read_thrift(footer, place_);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: {}", place_, what),
                "the file is damaged: fetch it again");
  }

  void read_schema(const std::vector<Thrift>& elements) {
    if (elements.empty() || elements.size() > budget::kColumns)
      refuse(fmt::format("it has {} columns", elements.size()));
    std::size_t next = 0;
    root_ = read_node(elements, next, {}, /*depth=*/0);
    if (next != elements.size()) refuse("its columns are described twice");
  }

  Node read_node(const std::vector<Thrift>& elements,
                 std::size_t& next,
                 const Node& parent,
                 int depth) {
    if (next == elements.size() || depth > kMostDepth)
      refuse("the description of its columns is damaged");
    const Thrift& element = elements[next++];
    Node out;
    const std::int64_t repetition = element.number_at(3, 0);
    if (repetition < 0 || repetition > 2) refuse("the description of its columns is damaged");
    out.repetition = depth == 0 ? Repetition::Required : static_cast<Repetition>(repetition);
    out.most_defined = parent.most_defined + (out.repetition == Repetition::Required ? 0 : 1);
    out.most_repeated = parent.most_repeated + (out.repetition == Repetition::Repeated ? 1 : 0);
    out.leaf.name = element.binary_at(4);
    out.first_leaf = leaves_;
    const std::int64_t children = element.number_at(5, 0);
    if (children < 0) refuse("the description of its columns is damaged");
    const std::int64_t converted = element.number_at(6, -1);
    const Thrift* const logical = element.find(10);
    const auto is_logical = [&](int id) {
      return logical != nullptr && logical->find(id) != nullptr;
    };
    for (std::int64_t i = 0; i < children; ++i)
      out.children.push_back(read_node(elements, next, out, depth + 1));
    if (children == 0) {
      set_leaf(out,
               static_cast<int>(element.number_at(1, -1)),
               converted,
               is_logical(1) || is_logical(4) || is_logical(12));
      ++leaves_;
    }
    out.last_leaf = leaves_;
    constexpr int kList = 3, kMap = 1, kMapKeyValue = 2;
    const bool said = converted == kList || converted == kMap || converted == kMapKeyValue ||
                      is_logical(3) || is_logical(2);
    out.is_list =
        said && out.children.size() == 1 && out.children.front().repetition == Repetition::Repeated;
    return out;
  }

  static void set_leaf(Node& node, int type, std::int64_t converted, bool is_text) {
    constexpr int kUtf8 = 0, kEnum = 4, kDecimal = 5, kUnsigned8 = 11, kUnsigned64 = 14, kJson = 19;
    Leaf& leaf = node.leaf;
    leaf.type = type;
    leaf.is_text = is_text || converted == kUtf8 || converted == kEnum || converted == kJson;
    leaf.is_unsigned = converted >= kUnsigned8 && converted <= kUnsigned64;
    leaf.most_defined = node.most_defined;
    leaf.most_repeated = node.most_repeated;
    constexpr int kInt96 = 3, kByteArray = 6, kFixed = 7;
    leaf.skipped = type == kInt96 || type == kFixed || type < 0 || type > kFixed ||
                   (type == kByteArray && !leaf.is_text) || converted == kDecimal;
  }

  void read_group(const Thrift& group) {
    const std::vector<Thrift>& chunks = group.items_at(1);
    if (chunks.size() != leaves_) refuse("a row group lacks columns");
    columns_.clear();
    std::int64_t budget = kFreeValues + kValuesPerByte * std::ssize(file_);
    add_columns(root_, chunks, budget);
    const std::int64_t rows = group.number_at(3, -1);
    if (rows < 0 || (columns_.empty() && rows > 0) ||
        rows > kFreeValues + kValuesPerByte * std::ssize(file_))
      refuse("a row group has no rows");
    for (std::int64_t row = 0; row < rows; ++row) {
      ++row_;
      sink_.value(object_of(root_), row_);
    }
    for (const auto& column : columns_) {
      if (!column->at_end()) refuse("a column has more values than rows");
    }
  }

  void add_columns(const Node& node, const std::vector<Thrift>& chunks, std::int64_t& budget) {
    for (const Node& child : node.children)
      add_columns(child, chunks, budget);
    if (!node.children.empty() || &node == &root_) return;
    const Thrift* const metadata = chunks[columns_.size()].find(3);
    if (metadata == nullptr || chunks[columns_.size()].find(1) != nullptr)
      refuse("a column lies in another file");
    columns_.push_back(std::make_unique<Column>(node.leaf, *metadata, file_, budget, place_));
  }

  /// Takes one entry from every column of the node; none of them has a value.
  json::Value skip(const Node& node) {
    for (std::size_t i = node.first_leaf; i < node.last_leaf; ++i)
      (void)columns_[i]->take();
    return {};
  }

  json::Value value_of(const Node& node) {
    if (node.first_leaf == node.last_leaf) return {};
    const Column& first = *columns_[node.first_leaf];
    if (node.repetition == Repetition::Repeated) return items_of(node, /*inner=*/false);
    if (node.repetition == Repetition::Optional && first.defined() < node.most_defined)
      return skip(node);
    if (node.is_list) return items_of(node.children.front(), /*inner=*/true);
    return plain_value(node);
  }
  json::Value plain_value(const Node& node) {
    return node.children.empty() ? columns_[node.first_leaf]->take() : object_of(node);
  }

  json::Value items_of(const Node& node, bool inner) {
    json::Value out = json::Value::array();
    const Column& first = *columns_[node.first_leaf];
    if (first.defined() < node.most_defined) {
      skip(node);
      return out;
    }
    // In a list, a group of one field is only a wrapper.
    const bool carries = inner && node.children.size() == 1 && node.leaf.name != "array" &&
                         !node.leaf.name.ends_with("_tuple");
    do {
      out.push_back(carries ? value_of(node.children.front()) : plain_value(node));
    } while (!first.at_end() && first.repeated() == node.most_repeated);
    return out;
  }

  json::Value object_of(const Node& node) {
    json::Value out = json::Value::object();
    for (const Node& child : node.children) {
      json::Value value = value_of(child);
      if (!(child.children.empty() && child.leaf.skipped))
        out.members().emplace_back(child.leaf.name, std::move(value));
    }
    return out;
  }

  const RecordSink& sink_;
  std::string place_;
  std::string_view file_;
  Node root_;
  std::size_t leaves_ = 0;
  std::vector<std::unique_ptr<Column>> columns_;
  std::int64_t row_ = 0;
};

void read_parquet(const RecordText& text, const RecordSink& sink) {
  ParquetReader(text, sink).read();
}

std::string parquet_metadata(const RecordText& text) {
  const RecordSink none;
  return ParquetReader(text, none).value_of_key("huggingface");
}

TESSERA_RECORD_FORMAT(parquet,
                      {.extensions = {".parquet"},
                       .read = read_parquet,
                       .datasets_metadata = parquet_metadata});

}  // namespace
}  // namespace tessera::data
