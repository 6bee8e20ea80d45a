// SPDX-License-Identifier: Apache-2.0
// The interface to the disk for saves; tests can make any call fail.
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
  /// Calls fsync; nothing may be appended afterwards.
  virtual void sync() = 0;
};

/// The disk. Every call that fails throws Error{Io} with the path and, if space ran out, the bytes
/// needed and free. Threads: any.
class Storage {
 public:
  virtual ~Storage() = default;
  /// Creates the folder; it must not exist yet.
  virtual void make_folder(const std::filesystem::path& path) = 0;
  /// Creates a file (it must not exist yet) and reserves `bytes` for it if the file system can.
  virtual std::unique_ptr<Output> create(const std::filesystem::path& path,
                                         std::uint64_t bytes) = 0;
  virtual void sync_folder(const std::filesystem::path& path) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Swaps two names in one step; returns false if the file system cannot.
  virtual bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  /// Removes a file, or a folder with its contents; it is not an error if there is none.
  virtual void remove(const std::filesystem::path& path) = 0;
  virtual void write_atomic(const std::filesystem::path& path, std::string_view content) = 0;
};

/// Returns the real file system.
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
