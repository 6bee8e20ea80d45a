// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/tiers/measure.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::memory {
namespace {

/// Moves a whole file through two buffers, so that transfers are always under way.
class Stream {
 public:
  Stream(TierFile& file, std::int64_t part, bool writes) : file_(file), writes_(writes) {
    for (Buffer& buffer : buffers_) {
      buffer.memory = StagingMemory(part);
      // Bytes that no disk can compress.
      std::uint64_t x = 88172645463325252ULL;
      const std::span<std::byte> bytes = buffer.memory.bytes();
      for (std::size_t i = 0; i + sizeof(x) <= bytes.size(); i += sizeof(x)) {
        x ^= x << 13U, x ^= x >> 7U, x ^= x << 17U;
        std::memcpy(bytes.data() + i, &x, sizeof(x));
      }
    }
  }

  /// Waits for a buffer and starts its next transfer; returns false at the end of the file.
  bool step() {
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    if (buffer.ticket) file_.wait(*buffer.ticket);
    buffer.ticket.reset();
    if (at_ == file_.size()) return false;
    const std::int64_t bytes = std::min(std::ssize(buffer.memory.bytes()), file_.size() - at_);
    const std::span<std::byte> part = buffer.memory.bytes().first(static_cast<std::size_t>(bytes));
    buffer.ticket = writes_ ? file_.write(at_, part) : file_.read(at_, part);
    at_ += bytes;
    return true;
  }
  void finish() {
    for (const Buffer& buffer : buffers_) {
      if (buffer.ticket) file_.wait(*buffer.ticket);
    }
  }

 private:
  struct Buffer {
    StagingMemory memory;
    std::optional<Ticket> ticket;
  };
  TierFile& file_;
  bool writes_;
  std::array<Buffer, 2> buffers_;
  std::size_t next_ = 0;
  std::int64_t at_ = 0;
};

/// Returns bytes per second.
double speed_of(std::int64_t bytes, const std::vector<Stream*>& streams) {
  const double start = now_s();
  for (bool more = true; more;) {
    more = false;
    for (Stream* const stream : streams)
      more = stream->step() || more;
  }
  for (Stream* const stream : streams)
    stream->finish();
  return static_cast<double>(bytes) / std::max(now_s() - start, 1e-9);
}

/// The entry of the disk of a folder, or of the nearest folder above that exists.
std::filesystem::path entry_of(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::absolute(folder, ignored);
  struct stat status {};
  while (::stat(at.c_str(), &status) != 0 && at.has_relative_path())
    at = at.parent_path();
  return files::cache_dir() / "disks" / fmt::format("{:x}", status.st_dev);
}

}  // namespace

void remember_speed(const TierSpeed& speed) {
  const std::filesystem::path path = entry_of(speed.options.folder);
  std::filesystem::create_directories(path.parent_path());
  files::write_atomic(path,
                      fmt::format("{} {} {:.0f} {:.0f} {:.0f}\n",
                                  speed.options.block_bytes,
                                  speed.options.transfers,
                                  speed.write,
                                  speed.read,
                                  speed.read_beside_write));
}

std::optional<TierSpeed> remembered_speed(const std::string& folder) {
  try {
    const std::filesystem::path path = entry_of(folder);
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
    std::istringstream words(files::read(path));
    TierSpeed out;
    out.options.folder = folder;
    words >> out.options.block_bytes >> out.options.transfers >> out.write >> out.read >>
        out.read_beside_write;
    if (!words || out.write <= 0 || out.read <= 0 || out.read_beside_write <= 0)
      return std::nullopt;
    return out;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

TierSpeed measure_disk(const TierOptions& options, std::int64_t bytes) {
  TESSERA_ASSERT(bytes > 0);
  const std::int64_t block = options.block_bytes;
  bytes = (bytes + block - 1) / block * block;
  // A buffer holds enough blocks for all transfers.
  const std::int64_t least = std::max(block * options.transfers, std::int64_t{8} << 20);
  const std::int64_t part = std::min((least + block - 1) / block * block, bytes);
  const std::unique_ptr<Tier> tier = tiers().get("disk")(options);
  const std::unique_ptr<TierFile> file = tier->open("a measurement", bytes),
                                  other = tier->open("a measurement", bytes);
  TierSpeed out{.options = options};
  Stream write(*file, part, /*writes=*/true);
  out.write = speed_of(bytes, {&write});
  Stream read(*file, part, /*writes=*/false);
  out.read = speed_of(bytes, {&read});
  Stream again(*file, part, /*writes=*/false), beside(*other, part, /*writes=*/true);
  out.read_beside_write = speed_of(bytes, {&again, &beside});
  return out;
}

const TierSpeed* fastest(const std::vector<TierSpeed>& speeds) {
  const auto best = std::ranges::max_element(speeds, {}, &TierSpeed::read_beside_write);
  return best == speeds.end() ? nullptr : &*best;
}

}  // namespace tessera::memory
