// SPDX-License-Identifier: Apache-2.0
// safetensors files: a JSON header and raw tensors. External files are not trusted: every length is
// checked before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/files.h"

namespace tessera::checkpoint {

struct TensorEntry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< offsets in the data part
};

/// A mapped file. Throws Error{Format} naming file and tensor for every inconsistency: header
/// length, overlap, hole, overflow, size, duplicate, a dtype that DType lacks (the 8-bit and
/// smaller floats, C64). Threads: const methods from any thread.
class SafetensorsFile {
 public:
  /// `header_xxh3`: the expected hash of the header (the first data_begin() bytes).
  explicit SafetensorsFile(const std::filesystem::path& path,
                           std::optional<std::uint64_t> header_xxh3 = std::nullopt);
  /// Returns the entries in the order of their bytes.
  [[nodiscard]] const std::vector<TensorEntry>& entries() const { return entries_; }
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  [[nodiscard]] std::span<const std::byte> bytes(const TensorEntry& entry) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Returns the mapping of the whole file; it lives as long as this object.
  [[nodiscard]] const files::Mapped& mapped() const { return *file_; }
  /// Returns the start of the data part; offsets of entries count from here.
  [[nodiscard]] std::uint64_t data_begin() const { return data_begin_; }

 private:
  void read_header(std::optional<std::uint64_t> xxh3);
  void check_layout();

  std::filesystem::path path_;
  std::unique_ptr<files::Mapped> file_;
  std::vector<TensorEntry> entries_;
  std::vector<std::uint32_t> by_name_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t data_begin_ = 0;
};

/// One tensor to write.
struct TensorBytes {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};
/// Writes and syncs a file at exactly `path` (the caller renames it). Tensors are ordered by
/// descending dtype, then name.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace tessera::checkpoint
