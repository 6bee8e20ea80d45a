// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/random_access.h"

#include <cerrno>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::checkpoint {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int code) {
  throw Error(
      Error::Kind::Io,
      fmt::format("cannot {} {}: {}", what, path.string(), std::generic_category().message(code)),
      "");
}

}  // namespace

RandomAccess::RandomAccess(const std::filesystem::path& path) : path_(path) {
  fd_ = files::open_file(path);
}

RandomAccess::~RandomAccess() {
  ::close(fd_);
}

void RandomAccess::read(std::uint64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t done = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    const int code = done < 0 ? errno : 0;
    TESSERA_REQUIRE(
        code != EIO,
        Format,
        fmt::format("{}: the disk cannot read its bytes from {} on", path_.string(), at),
        "");
    if (code != 0) fail("read", path_, code);
    TESSERA_REQUIRE(done > 0, Format, fmt::format("{} ends at byte {}", path_.string(), at), "");
    at += static_cast<std::uint64_t>(done);
    out = out.subspan(static_cast<std::size_t>(done));
  }
}

void RandomAccess::prefetch(std::uint64_t at, std::uint64_t bytes) const noexcept {
  ::posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

}  // namespace tessera::checkpoint
