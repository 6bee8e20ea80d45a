// SPDX-License-Identifier: Apache-2.0
// Tables of FlatBuffers, which are not trusted: every offset is checked when it is followed.
// Source: the FlatBuffers format ("Internals").
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::data {

/// A table within a buffer, which must outlive it. Throws Error{Data} for offsets outside of the
/// buffer.
class FlatTable {
 public:
  /// A vector: `count` items from `begin` on.
  struct Vector {
    std::uint64_t begin = 0, count = 0;
  };

  /// The root of a buffer; messages begin with `place`.
  static FlatTable root(std::string_view buffer, const std::string& place) {
    FlatTable out(buffer, 0, place);
    out.at_ = out.target(0);
    out.check();
    return out;
  }

  template <class T>
  [[nodiscard]] T scalar(unsigned field, T absent) const {
    const std::uint64_t at = place_of(field);
    return at == 0 ? absent : load<T>(at);
  }
  [[nodiscard]] std::optional<FlatTable> table(unsigned field) const {
    const std::uint64_t at = place_of(field);
    if (at == 0) return std::nullopt;
    FlatTable out(buffer_, target(at), place_);
    out.check();
    return out;
  }
  [[nodiscard]] std::string_view text(unsigned field) const {
    const Vector found = vector(field, 1);
    return buffer_.substr(found.begin, found.count);
  }
  /// Returns a vector with items of `size` bytes; empty if the field is absent.
  [[nodiscard]] Vector vector(unsigned field, std::uint64_t size) const {
    const std::uint64_t at = place_of(field);
    if (at == 0) return {};
    const std::uint64_t begin = target(at);
    const Vector out{begin + 4, load<std::uint32_t>(begin)};
    if (out.count > (buffer_.size() - out.begin) / size) refuse();
    return out;
  }
  /// Item `index` of a vector of tables.
  [[nodiscard]] FlatTable item(const Vector& vector, std::uint64_t index) const {
    FlatTable out(buffer_, target(vector.begin + 4 * index), place_);
    out.check();
    return out;
  }
  /// Reads at a position within a vector of numbers or structs.
  template <class T>
  [[nodiscard]] T load(std::uint64_t at) const {
    if (at > buffer_.size() || buffer_.size() - at < sizeof(T)) refuse();
    T out;
    std::memcpy(&out, buffer_.data() + at, sizeof(T));
    return out;
  }

 private:
  FlatTable(std::string_view buffer, std::uint64_t at, std::string place)
      : buffer_(buffer), at_(at), place_(std::move(place)) {}
  [[noreturn]] void refuse() const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: the description of the data leads out of itself", place_),
                "the file is damaged: fetch it again");
  }
  [[nodiscard]] std::uint64_t target(std::uint64_t at) const {
    return at + load<std::uint32_t>(at);
  }
  void check() {
    const std::int64_t table = static_cast<std::int64_t>(at_) - load<std::int32_t>(at_);
    if (table < 0) refuse();
    fields_ = static_cast<std::uint64_t>(table);
    size_ = load<std::uint16_t>(fields_);
  }
  /// Returns the position of the field; 0: it is absent.
  [[nodiscard]] std::uint64_t place_of(unsigned field) const {
    const std::uint64_t entry = 4 + 2 * static_cast<std::uint64_t>(field);
    if (entry + 2 > size_) return 0;
    const auto offset = load<std::uint16_t>(fields_ + entry);
    return offset == 0 ? 0 : at_ + offset;
  }

  std::string_view buffer_;
  std::uint64_t at_ = 0, fields_ = 0, size_ = 0;
  std::string place_;
};

}  // namespace tessera::data
