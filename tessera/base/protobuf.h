// SPDX-License-Identifier: Apache-2.0
// Writes messages in the wire format of protocol buffers, field by field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// Appends fields in the order of the calls. Zeros and empty texts are written like any other
/// value; to omit a field, do not call its function. Source: protobuf.dev, Encoding.
class WireMessage {
 public:
  WireMessage& integer(int field, std::int64_t value);
  WireMessage& real(int field, double value);
  WireMessage& single(int field, float value);
  WireMessage& bytes(int field, std::string_view value);
  WireMessage& message(int field, const WireMessage& value) { return bytes(field, value.out_); }
  WireMessage& reals(int field, std::span<const double> values);  ///< packed
  /// The beginning of a field of `size` bytes, which the caller writes after this message.
  WireMessage& opening(int field, std::uint64_t size);
  [[nodiscard]] const std::string& str() const { return out_; }

 private:
  void key(int field, int type);
  void varint(std::uint64_t value);
  std::string out_;
};

/// Appends an integer in little endian.
void append_le32(std::string& out, std::uint32_t value);
void append_le64(std::string& out, std::uint64_t value);

}  // namespace tessera
