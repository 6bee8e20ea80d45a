// SPDX-License-Identifier: Apache-2.0
// Everything that a save does to the disk, behind one interface that tests can break at any call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

/// A new file that is being written. The destructor closes it without syncing.
class Output {
 public:
  virtual ~Output() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  /// fsync; nothing may be appended afterwards.
  virtual void sync() = 0;
};

/// The disk. Every call that fails throws Error{Io} with the path and, where space ran out, the
/// bytes needed and free. Threads: any.
class Storage {
 public:
  virtual ~Storage() = default;
  /// Makes the folder; it must not exist yet.
  virtual void make_folder(const std::filesystem::path& path) = 0;
  /// A new file (it must not exist yet) for which `bytes` are reserved where the file system can.
  virtual std::unique_ptr<Output> create(const std::filesystem::path& path,
                                         std::uint64_t bytes) = 0;
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Swaps two names in one step; false where the file system cannot.
  virtual bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  /// Removes a file, or a folder with everything in it; nothing there is no error.
  virtual void remove(const std::filesystem::path& path) = 0;
  virtual void write_atomic(const std::filesystem::path& path, std::string_view content) = 0;
};

/// The file system itself.
Storage& real_storage();

/// save() and prune() on a given disk.
std::filesystem::path save(Storage& storage,
                           const std::filesystem::path& root,
                           const Meta& meta,
                           std::span<const PieceBytes> pieces,
                           const Ranks& ranks);
void prune(Storage& storage,
           const std::filesystem::path& root,
           int keep,
           std::optional<std::int64_t> spared = std::nullopt);

}  // namespace tessera::checkpoint
