// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/storage.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string free_text(const fs::path& path) {
  std::error_code failed;
  const auto space = fs::space(path.parent_path(), failed);
  return failed ? "an unknown number of bytes" : text::bytes(space.available);
}

/// Throws an Error for a system error number, with the numbers and the fix that belong to it.
[[noreturn]] void fail(const std::string& what,
                       const fs::path& path,
                       int code,
                       std::uint64_t needed = 0) {
  std::string reason = std::generic_category().message(code);
  std::string fix;
  const std::string need =
      needed > 0 ? fmt::format(" ({} needed, {} free)", text::bytes(needed), free_text(path)) : "";
  switch (code) {
    case ENOSPC:
      reason = "no space left on the disk" + need;
      fix =
          "free some space there, keep fewer checkpoints (checkpoint.keep) or put run.dir on "
          "another disk";
      break;
    case EDQUOT:
      reason = "the disk quota of this user is used up" + need;
      fix =
          "free some of your space there, keep fewer checkpoints (checkpoint.keep) or put run.dir "
          "elsewhere";
      break;
    case EFBIG:
      reason = "the file would be larger than this process or file system allows" + need;
      fix = "raise the limit (ulimit -f) or put run.dir on another file system";
      break;
    case EROFS:
      reason = "the file system is mounted read-only";
      fix = "put run.dir on a writable disk";
      break;
    case EACCES:
    case EPERM:
      reason = "permission denied";
      fix = fmt::format("make {} writable for this user or choose another run.dir",
                        path.parent_path().string());
      break;
    default:
      break;
  }
  throw Error(Error::Kind::Io, fmt::format("cannot {} {}: {}", what, path.string(), reason), fix);
}

/// A write beyond the file size limit raises SIGXFSZ, which would end the process without a
/// message. While an object of this class lives, the signal is blocked in this thread and write()
/// returns EFBIG.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoFileSizeSignal() {
    const timespec at_once{};
    while (sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t signal_{}, before_{};
};

/// Large files are written with direct I/O: the page cache would copy every byte, which is not
/// needed soon, at the cost of the cores that train and of the files that are read. If the file
/// system does not support it, and at the end of a file, ordinary writes are used.
class FileOutput final : public Output {
 public:
  FileOutput(const fs::path& path, std::uint64_t bytes) : path_(path), needed_(bytes) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("create", path_, errno, needed_);
    reserve();
    if (bytes >= kLarge && set_direct(true)) {
      block_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBlock)));
      if (!block_) set_direct(false);
    }
  }
  ~FileOutput() override {
    try {
      end_direct();  // without sync() a failure cannot be reported
    } catch (const Error&) {
    }
    ::close(fd_);
  }
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;

  void append(std::span<const std::byte> bytes) override {
    while (block_ && !bytes.empty()) {
      const std::size_t part = std::min(bytes.size(), kBlock - filled_);
      std::memcpy(block_.get() + filled_, bytes.data(), part);
      filled_ += part;
      bytes = bytes.subspan(part);
      if (filled_ == kBlock) write_block();
    }
    write_all(bytes);
  }
  void sync() override {
    end_direct();
    if (::fsync(fd_) != 0) fail("sync", path_, errno, needed_);
  }

 private:
  static constexpr std::size_t kAlignment = 4096, kBlock = std::size_t{4} << 20;
  static constexpr std::uint64_t kLarge = 4 * kBlock;

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  /// Detects that the disk is too small before anything is written; not every file system supports
  /// it.
  void reserve() {
    const NoFileSizeSignal quiet;
    if (needed_ == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(needed_)) == 0) return;
    const int code = errno;
    if (code != ENOSPC && code != EDQUOT && code != EFBIG) return;
    ::close(fd_);
    ::unlink(path_.c_str());
    fail("write", path_, code, needed_);
  }

  bool set_direct(bool on) const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return flags >= 0 && ::fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  /// Switches to ordinary writes, beginning with the buffered block.
  void end_direct() {
    if (!block_) return;
    set_direct(false);
    const std::unique_ptr<std::byte[], Free> block = std::move(block_);
    write_all({block.get(), filled_});
  }

  void write_block() {
    const NoFileSizeSignal quiet;
    std::size_t done = 0;
    while (done < filled_) {
      const ssize_t written = ::write(fd_, block_.get() + done, filled_ - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno != EINVAL) fail("write", path_, errno, needed_);
      if (written > 0) done += static_cast<std::size_t>(written);
      if (written >= 0 && done % kAlignment == 0) continue;
      // The disk's own blocks are larger than ours, or it wrote only a part of one.
      std::memmove(block_.get(), block_.get() + done, filled_ - done);
      filled_ -= done;
      return end_direct();
    }
    filled_ = 0;
  }

  void write_all(std::span<const std::byte> bytes) {
    const NoFileSizeSignal quiet;
    while (!bytes.empty()) {
      // One call writes at most 2 GiB; smaller ones keep a signal from waiting long.
      constexpr std::size_t kMostBytes = std::size_t{64} << 20;
      const ssize_t done = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostBytes));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("write", path_, errno, needed_);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

  fs::path path_;
  std::uint64_t needed_;
  int fd_ = -1;
  std::unique_ptr<std::byte[], Free> block_;  ///< buffer for direct writes
  std::size_t filled_ = 0;
};

class RealStorage final : public Storage {
 public:
  void make_folder(const fs::path& path) override {
    if (::mkdir(path.c_str(), 0777) != 0) fail("make the folder", path, errno);
  }
  std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
    return std::make_unique<FileOutput>(path, bytes);
  }
  void sync_folder(const fs::path& path) override { files::sync(path); }
  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename " + from.string() + " to", to, errno);
  }
  bool exchange(const fs::path& a, const fs::path& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
    fail("swap " + a.string() + " with", b, errno);
  }
  void remove(const fs::path& path) override {
    std::error_code failed;
    fs::remove_all(path, failed);
    if (failed) fail("remove", path, failed.value());
  }
  void write_atomic(const fs::path& path, std::string_view content) override {
    files::write_atomic(path, content);
  }
};

}  // namespace

Storage& real_storage() {
  static RealStorage storage;
  return storage;
}

}  // namespace tessera::checkpoint
