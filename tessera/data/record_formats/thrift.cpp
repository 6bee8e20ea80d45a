// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/record_formats/thrift.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

enum Type : std::uint8_t {
  kStop,
  kTrue,
  kFalse,
  kByte,
  kI16,
  kI32,
  kI64,
  kDouble,
  kBinary,
  kList,
  kSet,
  kMap,
  kStruct,
};
constexpr int kMostThriftLevels = 32;

class ThriftReader {
 public:
  ThriftReader(std::string_view& bytes, const std::string& place) : bytes_(bytes), place_(place) {}

  Thrift structure(int level) {
    check_level(level);
    Thrift out;
    int id = 0;
    for (std::uint8_t head = byte(); head != kStop; head = byte()) {
      const int delta = head >> 4;
      id = delta != 0 ? id + delta : static_cast<int>(zigzag());
      const std::uint8_t type = head & 15U;
      Thrift value;
      if (type == kTrue || type == kFalse) {
        value.number = type == kTrue ? 1 : 0;
      } else {
        value = read(type, level + 1);
      }
      out.fields.emplace_back(id, std::move(value));
    }
    return out;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: the description of the data is damaged", place_),
                "the file is damaged: fetch it again");
  }
  void check_level(int level) const {
    if (level > kMostThriftLevels) refuse();
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) refuse();
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1).front()); }
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint8_t part = byte();
      out |= static_cast<std::uint64_t>(part & 0x7FU) << shift;
      if ((part & 0x80U) == 0) return out;
    }
    refuse();
  }
  std::int64_t zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1U);
  }

  Thrift read(std::uint8_t type, int level) {
    check_level(level);
    Thrift out;
    switch (type) {
      case kTrue:
      case kFalse:  // in a list
        out.number = byte() == 1 ? 1 : 0;
        return out;
      case kByte:
        out.number = static_cast<std::int8_t>(byte());
        return out;
      case kI16:
      case kI32:
      case kI64:
        out.number = zigzag();
        return out;
      case kDouble:
        take(8);
        return out;
      case kBinary:
        out.binary = take(varint());
        return out;
      case kList:
      case kSet:
        return list(level);
      case kMap:
        return map(level);
      case kStruct:
        return structure(level);
      default:
        refuse();
    }
  }

  // Every item has at least one byte, which limits the memory.
  Thrift list(int level) {
    Thrift out;
    const std::uint8_t head = byte();
    const std::uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
    if (count > bytes_.size()) refuse();
    for (std::uint64_t i = 0; i < count; ++i)
      out.items.push_back(read(head & 15U, level + 1));
    return out;
  }
  Thrift map(int level) {
    const std::uint64_t count = varint();
    if (count == 0) return {};
    if (count > bytes_.size()) refuse();
    const std::uint8_t types = byte();
    for (std::uint64_t i = 0; i < count; ++i) {
      (void)read(types >> 4, level + 1);
      (void)read(types & 15U, level + 1);
    }
    return {};
  }

  std::string_view& bytes_;
  const std::string& place_;
};

}  // namespace

const Thrift* Thrift::find(int id) const {
  for (const auto& [field, value] : fields) {
    if (field == id) return &value;
  }
  return nullptr;
}
std::int64_t Thrift::number_at(int id, std::int64_t absent) const {
  const Thrift* const found = find(id);
  return found == nullptr ? absent : found->number;
}
std::string_view Thrift::binary_at(int id) const {
  const Thrift* const found = find(id);
  return found == nullptr ? std::string_view() : found->binary;
}
const std::vector<Thrift>& Thrift::items_at(int id) const {
  static const std::vector<Thrift> none;
  const Thrift* const found = find(id);
  return found == nullptr ? none : found->items;
}

Thrift read_thrift(std::string_view& bytes, const std::string& place) {
  return ThriftReader(bytes, place).structure(1);
}

}  // namespace tessera::data
