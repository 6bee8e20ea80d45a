// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/protobuf.h"

#include <bit>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kVarint = 0, kEight = 1, kBytes = 2, kFour = 5;

template <class T>
void append_le(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

}  // namespace

void append_le32(std::string& out, std::uint32_t value) {
  append_le(out, value);
}
void append_le64(std::string& out, std::uint64_t value) {
  append_le(out, value);
}

void WireMessage::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    out_ += static_cast<char>((value & 0x7f) | 0x80);
  out_ += static_cast<char>(value);
}

void WireMessage::key(int field, int type) {
  varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
}

WireMessage& WireMessage::integer(int field, std::int64_t value) {
  key(field, kVarint);
  varint(static_cast<std::uint64_t>(value));
  return *this;
}

WireMessage& WireMessage::real(int field, double value) {
  key(field, kEight);
  append_le64(out_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

WireMessage& WireMessage::single(int field, float value) {
  key(field, kFour);
  append_le32(out_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

WireMessage& WireMessage::opening(int field, std::uint64_t size) {
  key(field, kBytes);
  varint(size);
  return *this;
}

WireMessage& WireMessage::bytes(int field, std::string_view value) {
  opening(field, value.size());
  out_ += value;
  return *this;
}

WireMessage& WireMessage::reals(int field, std::span<const double> values) {
  std::string packed;
  for (const double value : values)
    append_le64(packed, std::bit_cast<std::uint64_t>(value));
  return bytes(field, packed);
}

std::optional<WireField> WireReader::next() {
  if (rest_.empty()) return std::nullopt;
  const std::uint64_t tag = varint();
  if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) damaged();
  WireField out;
  out.number = static_cast<std::uint32_t>(tag >> 3);
  switch (tag & 7U) {
    case kVarint:
      out.value = varint();
      break;
    case kEight:
      out.bytes = take(8);
      out.value = fixed(out.bytes);
      break;
    case kBytes:
      out.bytes = take(varint());
      out.has_bytes = true;
      break;
    case kFour:
      out.bytes = take(4);
      out.value = fixed(out.bytes);
      break;
    default:
      damaged();
  }
  return out;
}

std::uint64_t WireReader::varint() {
  std::uint64_t out = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    out |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return out;
  }
  damaged();
}

void WireReader::damaged() const {
  refuse_(file_);
  throw Error(Error::Kind::Bug, "a reader of protocol buffers did not refuse " + file_, "");
}

std::string_view WireReader::take(std::uint64_t size) {
  if (size > rest_.size()) damaged();
  const std::string_view out = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return out;
}

std::uint64_t WireReader::fixed(std::string_view bytes) {
  std::uint64_t out = 0;
  std::memcpy(&out, bytes.data(), bytes.size());  // little endian, like the format
  return out;
}

}  // namespace tessera
