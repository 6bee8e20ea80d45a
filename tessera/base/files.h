// SPDX-License-Identifier: Apache-2.0
// Contact with the file system. Every call that fails throws Error{Io} with path, operation and
// reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::files {

namespace fs = std::filesystem;

std::string read(const fs::path& path);
/// Writes a draft beside `path` (`<path>.tmp-<process>`), syncs it, renames it over `path` and
/// syncs the folder. Drafts that killed writers of `path` left go first.
void write_atomic(const fs::path& path, std::string_view content);
/// Removes the drafts of `path` that write_atomic() left in processes that are gone; those that
/// somebody still writes stay, also where that is another host or container.
void remove_stale_drafts(const fs::path& path);
/// fsync of a file or folder.
void sync(const fs::path& path);
std::uint64_t free_bytes(const fs::path& path);
/// A fresh empty folder under the system's temporary folder, `tessera-<process>-...`; removed with
/// everything in it by the destructor. What killed processes of this user left goes when the next
/// one is made.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int in_use_ = -1;  // locked while anybody of this process or its children lives
};

/// A file mapped read-only. Empty files have no bytes.
class Mapped {
 public:
  explicit Mapped(const fs::path& path);
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), size_};
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Exclusive lock on a file (flock): released by the destructor and by the kernel when the process
/// dies. The file holds the owner's host and process number as text.
class Lock {
 public:
  /// Nothing when somebody else holds it; `owner` then receives the text they left.
  static std::unique_ptr<Lock> try_acquire(const fs::path& path, std::string* owner = nullptr);
  /// Waits; calls `waiting` once with the owner's text if it has to, and `poll` twenty times a
  /// second: what that throws ends the waiting.
  static std::unique_ptr<Lock> acquire(const fs::path& path,
                                       void (*waiting)(const std::string& owner) = nullptr,
                                       const std::function<void()>& poll = {});
  /// The owner's text if somebody holds it now. Makes no file.
  static std::optional<std::string> holder(const fs::path& path);
  /// Whether that text names a process of this host that has ended; its children may still hold
  /// what it locked.
  static bool owner_is_gone(const std::string& owner);
  /// Removes the file of a lock that nobody will need again. Whoever is waiting makes a new one.
  void remove_file() noexcept;
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Lock(int fd, fs::path path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  fs::path path_;
};

/// TESSERA_CACHE, XDG_CACHE_HOME/tessera, ~/.cache/tessera, or .cache in the working directory.
fs::path cache_dir();
/// xxh3 of bytes, 64 bits; `Hasher` does it in pieces.
std::uint64_t xxh3(std::span<const std::byte> bytes);
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  void* state_;
};
std::string hex64(std::uint64_t value);

}  // namespace tessera::files
