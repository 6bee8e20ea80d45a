// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"

namespace tessera::comm {
namespace {

constexpr std::size_t kPage = 4096;
/// Requests of this size or more are compared with the available memory before they are made: the
/// kernel would kill a process rather than refuse.
constexpr std::size_t kAskFirst = std::size_t{16} << 20;

std::size_t round_up(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

class AnonymousMapping final : public Mapping {
 public:
  explicit AnonymousMapping(std::size_t bytes) {
    void* base = mmap(
        nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TESSERA_REQUIRE(
        base != MAP_FAILED,
        Memory,
        fmt::format(
            "no address space for an arena of {}: {}", text::bytes(bytes), std::strerror(errno)),
        "raise the limit that `ulimit -v` shows");
    madvise(base, bytes, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(base);
    bytes_ = bytes;
  }
  ~AnonymousMapping() override { munmap(base_, bytes_); }
  int reserve(std::size_t, std::size_t) noexcept override { return 0; }
  void release(std::size_t offset, std::size_t bytes) noexcept override {
    madvise(base_ + offset, bytes, MADV_DONTNEED);
  }
};

class FileMapping final : public Mapping {
 public:
  FileMapping(int descriptor, std::size_t bytes) : descriptor_(descriptor) {
    void* base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    TESSERA_REQUIRE(
        base != MAP_FAILED,
        Environment,
        fmt::format("cannot map {} of a memory file: {}", text::bytes(bytes), std::strerror(errno)),
        "raise the limit that `ulimit -v` shows, or use fewer ranks");
    madvise(base, bytes, MADV_HUGEPAGE);
    base_ = static_cast<std::byte*>(base);
    bytes_ = bytes;
  }
  ~FileMapping() override { munmap(base_, bytes_); }

  // Touching a page that the file cannot get raises SIGBUS; reserving it first returns an errno.
  int reserve(std::size_t offset, std::size_t bytes) noexcept override {
    while (fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
      if (errno != EINTR) return errno;
#ifdef MADV_POPULATE_WRITE
    // One call instead of a fault per page; kernels before 5.14 refuse it, which does no harm.
    madvise(base_ + offset, bytes, MADV_POPULATE_WRITE);
#endif
    return 0;
  }
  void release(std::size_t offset, std::size_t bytes) noexcept override {
    fallocate(descriptor_,
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
  }

 private:
  int descriptor_;
};

}  // namespace

std::shared_ptr<Mapping> map_anonymous(std::size_t bytes) {
  return std::make_shared<AnonymousMapping>(bytes);
}

std::shared_ptr<Mapping> map_file(int descriptor, std::size_t bytes) {
  return std::make_shared<FileMapping>(descriptor, bytes);
}

/// A piece of an arena, freed with its last owner.
class Arena::Allocation final : public Region {
 public:
  Allocation(std::shared_ptr<Arena> arena, std::size_t offset, std::size_t bytes, memory::Tag tag)
      : arena_(std::move(arena)),
        offset_(offset),
        bytes_(bytes),
        charge_(memory::Charge::open(static_cast<std::int64_t>(round_up(bytes)), tag)) {}
  ~Allocation() override {
    charge_.release();
    arena_->give_back(offset_, round_up(bytes_));
  }
  [[nodiscard]] void* data() const override { return arena_->mapping_->base() + offset_; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Arena> arena_;
  std::size_t offset_;
  std::size_t bytes_;
  memory::Charge charge_;
};

Arena::Arena(std::shared_ptr<Mapping> mapping, std::size_t header_bytes)
    : mapping_(std::move(mapping)) {
  const std::size_t header = round_up(header_bytes);
  free_[0] = mapping_->bytes() / kPage * kPage;
  take(header, memory::Tag::Communication);
}

RegionPtr Arena::allocate(std::size_t bytes, memory::Tag tag) {
  bytes = std::max<std::size_t>(bytes, 1);
  const std::size_t offset = take(bytes, tag);
  auto region = std::make_shared<Allocation>(shared_from_this(), offset, bytes, tag);
  const std::lock_guard lock(mutex_);
  live_[offset] = region;
  return region;
}

std::size_t Arena::take(std::size_t bytes, memory::Tag tag) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Error::Kind::Memory,
                fmt::format("cannot allocate {} of shared memory for {}: {} (this rank holds {})",
                            text::bytes(bytes),
                            memory::name(tag),
                            why,
                            text::bytes(held_.load())),
                "use a smaller model or micro-batch, or fewer ranks on this host");
  };
  // Sizes near the largest integer would overflow in round_up.
  if (bytes > mapping_->bytes()) refuse("the arena has " + text::bytes(mapping_->bytes()));
  if (bytes >= kAskFirst) {
    const std::uint64_t available = launch::available_memory();
    if (bytes > available) refuse(text::bytes(available) + " are available");
  }
  const std::size_t rounded = round_up(bytes);
  std::size_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const auto& range) { return range.second >= rounded; };
    const auto range = std::find_if(free_.begin(), free_.end(), fits);
    if (range == free_.end()) refuse("no address range of the arena is long enough");
    offset = range->first;
    const std::size_t rest = range->second - rounded;
    free_.erase(range);
    if (rest != 0) free_[offset + rounded] = rest;
    held_ += rounded;
  }
  if (const int error = mapping_->reserve(offset, rounded); error != 0) {
    give_back(offset, rounded);
    refuse(std::strerror(error));
  }
  return offset;
}

RegionPtr Arena::find(const void* data, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto base = reinterpret_cast<std::uintptr_t>(mapping_->base());
  if (address < base || address - base >= mapping_->bytes()) return nullptr;
  RegionPtr region;  // before the lock: if this was the last owner, give_back() takes the lock too
  const std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(address - base);
  if (next == live_.begin()) return nullptr;
  --next;
  region = next->second.lock();
  if (!region || address - base + bytes > next->first + region->bytes()) return nullptr;
  return region;
}

void Arena::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Arena::give_back(std::size_t offset, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  live_.erase(offset);
  held_ -= bytes;
  if (closed_) return;
  mapping_->release(offset, bytes);
  insert_free(offset, bytes);
}

void Arena::insert_free(std::size_t offset, std::size_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

const std::shared_ptr<Mapping>& Arenas::share(int rank) {
  std::shared_ptr<Mapping>& mapping = mappings_[static_cast<std::size_t>(rank)];
  if (!mapping) mapping = open_(rank);
  return mapping;
}

}  // namespace tessera::comm
