// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/tiers/disk_jobs.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/base/text.h"

namespace tessera::memory::disk {

SlotFile::SlotFile(const TierOptions& options, std::string what, std::int64_t slots)
    : folder_(options.folder), what_(std::move(what)), block_(options.block_bytes) {
  constexpr int kFlags = O_TMPFILE | O_RDWR | O_CLOEXEC;
  constexpr int kMode = 0600;
  fd_ = ::open(folder_.c_str(), kFlags | (options.direct ? O_DIRECT : 0), kMode);
  if (fd_ < 0 && errno == EINVAL) fd_ = ::open(folder_.c_str(), kFlags, kMode);
  if (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string path = folder_ + "/tier-XXXXXX";
    fd_ = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd_ >= 0) ::unlink(path.c_str());
  }
  if (fd_ < 0) fail("open a file", errno);
  try {
    reserve(0, slots);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

void SlotFile::fail(const std::string& doing, int code) const {
  std::string fix = "use another folder";
  if (code == ENOSPC || code == EDQUOT)
    fix = "free space in " + folder_ + ", or use another folder";
  if (code == EIO) fix = "check the disk of " + folder_ + " (dmesg), or use another folder";
  throw Error(Error::Kind::Io,
              fmt::format("the tier in {} cannot {} for {}: {}",
                          folder_,
                          doing,
                          what_,
                          std::generic_category().message(code)),
              std::move(fix));
}

void SlotFile::damaged(std::size_t slot) const {
  throw Error(
      Error::Kind::Io,
      fmt::format("the tier in {} read other bytes than it wrote for {}: the checksum of {} "
                  "from byte {} on is wrong",
                  folder_,
                  what_,
                  text::bytes(static_cast<std::uint64_t>(block_)),
                  slot * static_cast<std::size_t>(block_)),
      "check the disk of " + folder_ +
          ", or use another folder; the run can continue from "
          "its last checkpoint");
}

void SlotFile::reserve(std::int64_t first, std::int64_t end) const {
  if (end <= first) return;
  // A file larger than this process allows is an error, and not the signal SIGXFSZ.
  int code = 0;
  quiet_thread([&] {
    code = ::posix_fallocate(fd_, first * block_, (end - first) * block_);
  }).join();
  if (code != 0)
    fail("reserve " + text::bytes(static_cast<std::uint64_t>((end - first) * block_)), code);
}

template <class Byte, class Call>
void SlotFile::move(std::size_t slot,
                    std::span<Byte> bytes,
                    std::string_view verb,
                    const Call& call) const {
  auto at = static_cast<off_t>(slot) * block_;
  while (!bytes.empty()) {
    const ssize_t moved = call(fd_, bytes.data(), bytes.size(), at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0)
      fail(fmt::format("{} {} at byte {}", verb, text::bytes(bytes.size()), at),
           moved < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
    at += moved;
  }
  drop_cached(slot);
}

void SlotFile::drop_cached(std::size_t slot) const {
  ::posix_fadvise(fd_, static_cast<off_t>(slot) * block_, block_, POSIX_FADV_DONTNEED);
}

void SlotFile::failed(std::size_t slot, bool reads, int code) const {
  fail(fmt::format("{} {} at byte {}",
                   reads ? "read" : "write",
                   text::bytes(static_cast<std::uint64_t>(block_)),
                   static_cast<std::int64_t>(slot) * block_),
       code);
}

void SlotFile::read(std::size_t slot, std::span<std::byte> to) const {
  move(slot, to, "read", ::pread);
}

void SlotFile::write(std::size_t slot, std::span<const std::byte> from) const {
  move(slot, from, "write", ::pwrite);
}

}  // namespace tessera::memory::disk
