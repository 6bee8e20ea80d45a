// SPDX-License-Identifier: Apache-2.0
// Writes and reads messages in the wire format of protocol buffers, field by field.
#pragma once

#include <cstdint>
#include <optional>
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

/// A field of a message: a number, or the bytes of a text or message.
struct WireField {
  std::uint32_t number = 0;
  std::uint64_t value = 0;  ///< a number, or the bits of one of fixed width
  std::string_view bytes;   ///< also those of a number of fixed width
  bool has_bytes = false;   ///< the field is a text, a message or a packed list
};

/// Reads the fields of a message in order. The bytes may come from a hostile file.
class WireReader {
 public:
  /// `refuse` throws the error about `file`; it is called for bytes that are not a message.
  using Refuse = void (*)(const std::string& file);
  WireReader(std::string_view message, const std::string& file, Refuse refuse)
      : rest_(message), file_(file), refuse_(refuse) {}

  /// Returns the next field; nothing after the last one.
  std::optional<WireField> next();
  /// Returns the next number of a packed list.
  std::uint64_t varint();
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  [[noreturn]] void damaged() const;

 private:
  std::string_view take(std::uint64_t size);
  static std::uint64_t fixed(std::string_view bytes);

  std::string_view rest_;
  const std::string& file_;
  Refuse refuse_;
};

/// Appends an integer in little endian.
void append_le32(std::string& out, std::uint32_t value);
void append_le64(std::string& out, std::uint64_t value);

}  // namespace tessera
