// SPDX-License-Identifier: Apache-2.0
// Encodes the keys and values at the beginning of GGUF files.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/interop/gguf/file.h"

namespace tessera::interop {

/// The bytes of a number or a text in the file.
template <class T>
std::string gguf_raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}
inline std::string gguf_raw(const std::string& text) {
  return gguf_raw(static_cast<std::uint64_t>(text.size())) + text;
}

/// Collects keys and values as they are in the file.
class GgufKeys {
 public:
  void add(const std::string& key, const std::string& text) {
    begin(key, GgufType::String);
    bytes_ += gguf_raw(text);
  }
  void count(const std::string& key, std::int64_t value) {
    begin(key, GgufType::U32);
    bytes_ += gguf_raw(static_cast<std::uint32_t>(value));
  }
  void real(const std::string& key, double value) {
    begin(key, GgufType::F32);
    bytes_ += gguf_raw(static_cast<float>(value));
  }
  void flag(const std::string& key, bool value) {
    begin(key, GgufType::Bool);
    bytes_ += value ? '\1' : '\0';
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    array(key, GgufType::String, values.size());
    for (const std::string& value : values)
      bytes_ += gguf_raw(value);
  }
  template <class T>
  void numbers(const std::string& key, GgufType type, const std::vector<T>& values) {
    array(key, type, values.size());
    for (const T value : values)
      bytes_ += gguf_raw(value);
  }
  [[nodiscard]] std::uint64_t size() const { return count_; }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, GgufType type) {
    bytes_ += gguf_raw(key) + gguf_raw(static_cast<std::uint32_t>(type));
    ++count_;
  }
  void array(const std::string& key, GgufType type, std::size_t count) {
    begin(key, GgufType::Array);
    bytes_ +=
        gguf_raw(static_cast<std::uint32_t>(type)) + gguf_raw(static_cast<std::uint64_t>(count));
  }

  std::string bytes_;
  std::uint64_t count_ = 0;
};

}  // namespace tessera::interop
