// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/bounded_file.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/files.h"

namespace tessera::files {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kStreamBytes = std::uint64_t{64} << 20;  // a device or pipe has no size
constexpr const char* kFix = "name a file with the text itself";

/// Reads a device or pipe to its end, or its first `most` bytes and some more.
std::string read_stream(const fs::path& path, std::uint64_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string out;
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  while (in && out.size() <= most) {
    const std::size_t before = out.size();
    out.resize(before + kBlock);
    in.read(out.data() + before, kBlock);
    out.resize(before + static_cast<std::size_t>(in.gcount()));
  }
  return out;
}

}  // namespace

std::string read_within(const fs::path& path, std::uint64_t most) {
  std::error_code unknown;
  const fs::file_status status = fs::status(path, unknown);
  if (fs::is_character_file(status) || fs::is_block_file(status) || fs::is_fifo(status)) {
    most = std::min(most, kStreamBytes);
    std::string out = read_stream(path, most);
    budget::require_bytes(out.size(), most, path.string(), "a device or pipe", kFix);
    return out;
  }
  const std::uintmax_t size = fs::file_size(path, unknown);
  if (!unknown) budget::require_bytes(size, most, path.string(), "a file", kFix);
  return read(path);  // reports what is missing or may not be read
}

std::optional<std::uint64_t> first_hole(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::optional<std::uint64_t> out;
  struct stat status {};
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    const off_t hole = ::lseek(fd, 0, SEEK_HOLE);
    // Some file systems call a hole what is only not yet written to the disk.
    char byte = 1;
    const bool zero =
        hole >= 0 && hole < status.st_size && ::pread(fd, &byte, 1, hole) == 1 && byte == 0;
    if (zero) out = static_cast<std::uint64_t>(hole);
  }
  ::close(fd);
  return out;
}

}  // namespace tessera::files
