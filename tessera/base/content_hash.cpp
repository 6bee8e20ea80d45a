// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/content_hash.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::files {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;
/// Fewer bytes are hashed in less time than their hash is found.
constexpr std::uint64_t kLarge = std::uint64_t{16} << 20;
/// A change within this time may have the same time as the one before.
constexpr std::time_t kSettledS = 3;
constexpr std::size_t kMostKept = 512;

/// Returns whether another host cannot change files of this file system, whose attributes are
/// therefore never old.
bool is_local(const fs::path& file) {
  constexpr std::array<std::uint64_t, 7> kLocal = {0xEF53 /* ext */,
                                                   0x58465342 /* xfs */,
                                                   0x9123683E /* btrfs */,
                                                   0x01021994 /* tmpfs */,
                                                   0x794C7630 /* overlay */,
                                                   0x2FC12FC1 /* zfs */,
                                                   0xF2F52010 /* f2fs */};
  struct statfs facts {};
  return ::statfs(file.c_str(), &facts) == 0 &&
         std::ranges::find(kLocal, static_cast<std::uint32_t>(facts.f_type)) != kLocal.end();
}

/// A hash of attributes of files, which changes when one of them is written or replaced.
struct Stamp {
  std::uint64_t hash = 0, bytes = 0;
  bool settled = true;  ///< a later change would give another stamp
};
Stamp stamp_of(std::span<const fs::path> files) {
  Stamp out;
  Hasher hasher;
  const std::time_t now = std::time(nullptr);
  std::set<dev_t> local;
  for (const fs::path& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) return {0, 0, false};  // reading it says why
    const std::array<std::uint64_t, 7> facts = {status.st_dev,
                                                status.st_ino,
                                                static_cast<std::uint64_t>(status.st_size),
                                                static_cast<std::uint64_t>(status.st_mtim.tv_sec),
                                                static_cast<std::uint64_t>(status.st_mtim.tv_nsec),
                                                static_cast<std::uint64_t>(status.st_ctim.tv_sec),
                                                static_cast<std::uint64_t>(status.st_ctim.tv_nsec)};
    hasher.update(std::as_bytes(std::span(facts)));
    out.bytes += static_cast<std::uint64_t>(status.st_size);
    const std::time_t changed = std::max(status.st_ctim.tv_sec, status.st_mtim.tv_sec);
    if (!local.contains(status.st_dev) && is_local(file)) local.insert(status.st_dev);
    out.settled = out.settled && now - changed > kSettledS && local.contains(status.st_dev);
  }
  out.hash = hasher.digest();
  return out;
}

/// The place of a hash in the cache; what is there is checked, because a disk may be damaged.
fs::path place_of(const Stamp& stamp) {
  return cache_dir() / "contents" / hex64(stamp.hash);
}
std::string text_of(const Stamp& stamp, std::uint64_t hash) {
  const std::array<std::uint64_t, 2> both = {stamp.hash, hash};
  return hex64(hash) + " " + hex64(xxh3(std::as_bytes(std::span(both)))) + "\n";
}

std::optional<std::uint64_t> find(const Stamp& stamp) {
  try {
    const std::string text = read(place_of(stamp));
    const std::uint64_t hash = std::strtoull(text.c_str(), nullptr, 16);
    if (text == text_of(stamp, hash)) return hash;
  } catch (const Error&) {  // it was never kept, or the cache cannot be read
  }
  return std::nullopt;
}

/// Keeps a hash, and removes those that were kept first if they have become many.
void keep(const Stamp& stamp, std::uint64_t hash) noexcept {
  try {
    const fs::path place = place_of(stamp);
    std::error_code failed;
    fs::create_directories(place.parent_path(), failed);
    std::vector<std::pair<fs::file_time_type, fs::path>> kept;
    for (fs::directory_iterator at(place.parent_path(), failed), end; !failed && at != end;
         at.increment(failed))
      kept.emplace_back(at->last_write_time(failed), at->path());
    std::ranges::sort(kept);
    for (std::size_t i = 0; i + kMostKept <= kept.size(); ++i)
      fs::remove(kept[i].second, failed);
    write_atomic(place, text_of(stamp, hash));
  } catch (const std::exception&) {  // the next run reads the files again
  }
}

void add_file(Hasher& hasher, const fs::path& file, const std::function<void()>& poll) {
  const int fd = open_file(file);
  std::vector<std::byte> piece(kPiece);
  std::uint64_t bytes = 0;
  int reason = 0;
  try {
    for (;;) {
      const ssize_t got = ::read(fd, piece.data(), piece.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) reason = errno;
      if (got <= 0) break;
      bytes += static_cast<std::uint64_t>(got);
      hasher.update(std::span(piece).first(static_cast<std::size_t>(got)));
      if (poll) poll();
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  TESSERA_REQUIRE(
      reason == 0, Io, "cannot read " + file.string() + ": " + std::strerror(reason), "");
  hasher.update(std::as_bytes(std::span(&bytes, 1)));  // keeps files apart
}

}  // namespace

std::uint64_t content_hash(std::span<const fs::path> files, const std::function<void()>& poll) {
  const Stamp before = stamp_of(files);
  const bool may_keep = before.settled && before.bytes >= kLarge;
  if (may_keep) {
    if (const auto known = find(before)) return *known;
  }
  Hasher hasher;
  for (const fs::path& file : files)
    add_file(hasher, file, poll);
  const std::uint64_t hash = hasher.digest();
  if (may_keep && stamp_of(files).hash == before.hash) keep(before, hash);
  return hash;
}

}  // namespace tessera::files
