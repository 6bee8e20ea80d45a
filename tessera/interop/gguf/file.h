// SPDX-License-Identifier: Apache-2.0
// GGUF containers, versions 2 and 3, little endian: keys with typed values, and tensors. Source:
// the GGUF specification of the ggml project. Byte layout: docs/formats/gguf.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/interop/gguf/blocks.h"

namespace tessera::interop {

/// The numbers of value types in files.
enum class GgufType : std::uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

/// A value in the mapped file. An array holds numbers or strings, never arrays.
struct GgufValue {
  GgufType type = GgufType::U8;
  GgufType of = GgufType::U8;       ///< type of an array's items
  std::uint64_t count = 1;          ///< number of items of an array; else 1
  std::span<const std::byte> data;  ///< consecutive numbers
  std::vector<std::string_view> strings;

  [[nodiscard]] bool is_array() const { return type == GgufType::Array; }
  /// Number `index` as an integer; nothing for floats, strings and numbers above 2^63 - 1.
  [[nodiscard]] std::optional<std::int64_t> integer(std::uint64_t index = 0) const;
  /// Number `index`; an F32 becomes the double of its shortest decimal, as a configuration would
  /// contain it. Nothing for strings.
  [[nodiscard]] std::optional<double> number(std::uint64_t index = 0) const;
};

/// A tensor of a file. `shape` is row-major: the reverse of the file's order of dims.
struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::F32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// A mapped GGUF file. Every count and length is checked against the size of the file before
/// anything is allocated for it; keys and names are unique; tensors are aligned, inside the file
/// and do not overlap. Throws Error{Format} with file and place, and Error{Unsupported} for version
/// 1, big-endian files and element types that cannot be read. Const methods can be called from any
/// thread.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::shared_ptr<const files::Mapped>& map() const { return map_; }
  [[nodiscard]] std::uint32_t version() const { return version_; }
  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& values() const {
    return values_;
  }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* tensor(std::string_view name) const;

  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  /// The value of a key with that type; nothing if the key is absent. Throws Error{Format} with the
  /// key for another type.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> flag(std::string_view key) const;
  /// The text is valid UTF-8.
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  /// The strings of an array value; each is valid UTF-8.
  [[nodiscard]] const std::vector<std::string_view>* texts(std::string_view key) const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  void place_tensors(std::uint64_t header_end,
                     std::uint64_t alignment,
                     const std::vector<std::uint64_t>& offsets);

  std::filesystem::path path_;
  std::shared_ptr<const files::Mapped> map_;
  std::uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace tessera::interop
