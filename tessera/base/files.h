// SPDX-License-Identifier: Apache-2.0
// File system access. Every call that fails throws Error{Io} with the path, the operation and the
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

#include <sys/types.h>

namespace tessera::files {

namespace fs = std::filesystem;

/// Reads a regular file, also through a link. Never waits: a FIFO or a device is refused.
std::string read(const fs::path& path);
/// Reads what a user has named, also a FIFO or a device, to its end.
std::string read_stream(const fs::path& path);

// Files of folders to which tessera writes: runs, caches, logs. Another user or program may have
// put a link, a FIFO, a device or a folder in the place of such a file. These functions follow no
// link in the last part of the path and never wait for another program; they throw Error{Io} that
// says what is there.

/// Opens a regular file with the flags of open(2), and returns its descriptor.
int open_own(const fs::path& path, int flags, mode_t mode = 0666);
/// Removes what is at `path`, but not a folder, and creates a file there that is open for writing.
/// Returns its descriptor.
int create_own(const fs::path& path, mode_t mode = 0666);
/// Throws if there is something else than a file at `path`.
void require_own_file(const fs::path& path);
/// Throws if there is something else than a folder at `folder`, or if an entry of the folder is a
/// link, a FIFO or a device.
void require_own_folder(const fs::path& folder);

/// Opens a regular file for reading, also through a link. Never waits: throws Error{Io} for a FIFO,
/// a device, a socket or a folder.
int open_file(const fs::path& path);

/// Writes a draft beside `path` (`<path>.tmp-<process>`), syncs it, renames it over `path` and
/// syncs the folder. Drafts of `path` left behind by killed writers are removed first.
void write_atomic(const fs::path& path, std::string_view content);
/// Removes drafts of `path` that write_atomic() left behind in processes that have ended. Drafts
/// that are still being written stay, also those of other hosts or containers.
void remove_stale_drafts(const fs::path& path);
/// Calls fsync on a file or folder.
void sync(const fs::path& path);
std::uint64_t free_bytes(const fs::path& path);
/// An empty folder under the system's temporary folder, named `tessera-<process>-...`. The
/// destructor removes it with its contents. Creating one also removes the folders left behind by
/// killed processes of the same user.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int in_use_ = -1;  // locked while this process or a child of it lives
};

/// A file mapped read-only. An empty file has no bytes.
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

/// An exclusive lock on a file (flock). It is released by the destructor, or by the kernel when the
/// process ends. The file holds the host and process number of the owner as text.
class Lock {
 public:
  /// Returns null if the lock is held elsewhere; `owner` then receives the text of the owner.
  static std::unique_ptr<Lock> try_acquire(const fs::path& path, std::string* owner = nullptr);
  /// Calls for whom a wait is: the owner's text, with a remark if a signal has stopped its process.
  using Waiting = std::function<void(const std::string& owner)>;
  /// Waits for the lock. After `told_after_s`, and each time the wait has become ten times as long,
  /// calls `waiting`; calls `poll` twenty times per second. What they throw ends the wait.
  static std::unique_ptr<Lock> acquire(const fs::path& path,
                                       const Waiting& waiting = {},
                                       const std::function<void()>& poll = {},
                                       double told_after_s = 3.0);
  /// Returns the owner's text if the lock is held. Does not create the file.
  static std::optional<std::string> holder(const fs::path& path);
  /// Returns whether the text names a process of this host that has ended. Children of that process
  /// may still hold the lock.
  static bool owner_is_gone(const std::string& owner);
  /// Removes the lock file. A process that waits for the lock then creates a new file.
  void remove_file() noexcept;
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Lock(int fd, fs::path path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  fs::path path_;
};

/// Returns TESSERA_CACHE, XDG_CACHE_HOME/tessera, ~/.cache/tessera, or .cache in the working
/// directory, in this order.
fs::path cache_dir();
/// Returns the 64-bit xxh3 hash of `bytes`; `Hasher` computes it incrementally.
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
