// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/shared_files.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/launch/launch.h"

namespace tessera::launch {
namespace {

constexpr std::size_t kPageBytes = 4096;
// Every rank maps every arena; this is half of the 128 TiB that a process can address.
constexpr std::size_t kAddressBytes = std::size_t{64} << 40;

std::size_t fitting_arena(int ranks, std::size_t wanted) {
  std::size_t space = kAddressBytes;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    space = std::min<std::size_t>(space, limit.rlim_cur / 4);
  }
  const std::size_t each = std::min(wanted, space / static_cast<std::size_t>(ranks));
  return std::max(each / kPageBytes, std::size_t{1}) * kPageBytes;
}

// A file size beyond the limit raises SIGXFSZ, which would end the process without a message.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() { before_ = std::signal(SIGXFSZ, SIG_IGN); }
  ~NoFileSizeSignal() { std::signal(SIGXFSZ, before_); }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  void (*before_)(int);
};

Fd memory_file(const char* name, std::size_t bytes) {
  const NoFileSizeSignal quiet;
  Fd file(memfd_create(name, MFD_CLOEXEC));
  TESSERA_REQUIRE(
      file.get() >= 0,
      Environment,
      fmt::format("no memory file for shared memory: memfd_create: {}", std::strerror(errno)),
      "allow memfd_create in the container's system call filter");
  TESSERA_REQUIRE(
      ftruncate(file.get(), static_cast<off_t>(bytes)) == 0,
      Environment,
      fmt::format(
          "no memory file of {} (sparse): ftruncate: {}", text::bytes(bytes), std::strerror(errno)),
      errno == EFBIG ? "raise the file size limit: ulimit -f unlimited" : "");
  return file;
}

ControlPage* map_page(int fd, int ranks) {
  void* const page =
      mmap(nullptr, ControlPage::bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  TESSERA_REQUIRE(page != MAP_FAILED,
                  Environment,
                  fmt::format("cannot map the control page: {}", std::strerror(errno)),
                  "");
  return static_cast<ControlPage*>(page);
}

}  // namespace

SharedFiles::SharedFiles(int ranks, std::size_t arena_bytes) : ranks_(ranks) {
  allow_descriptors(static_cast<std::size_t>(ranks) + 1);
  control_fd_ = memory_file("tessera-control", ControlPage::bytes(ranks));
  if (ranks > 1) arena_bytes_ = fitting_arena(ranks, arena_bytes);
  for (int i = 0; ranks > 1 && i < ranks; ++i) {
    arenas_.push_back(memory_file(fmt::format("tessera-arena-{}", i).c_str(), arena_bytes_));
  }
  control_ = map_page(control_fd_.get(), ranks);
  ControlPage::format(control_, ranks);
}

SharedFiles::~SharedFiles() {
  if (kept_) {
    for (Fd& arena : arenas_)
      static_cast<void>(arena.release());
    static_cast<void>(control_fd_.release());
  } else if (control_ != nullptr) {
    munmap(control_, ControlPage::bytes(ranks_));
  }
}

std::vector<int> SharedFiles::arenas() const {
  std::vector<int> list;
  for (const Fd& arena : arenas_)
    list.push_back(arena.get());
  return list;
}

ControlPage* map_control(int fd, int ranks) {
  ControlPage* const page = map_page(fd, ranks);
  TESSERA_REQUIRE(
      page->magic == ControlPage::kMagic && page->ranks == static_cast<std::uint32_t>(ranks),
      Bug,
      fmt::format("the control page is not that of {} ranks", ranks),
      "");
  return page;
}

void allow_descriptors(std::size_t count) {
  constexpr std::size_t kOwn = 64;  // standard streams, logs, data files
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const rlim_t need = count + kOwn;
  if (limit.rlim_cur >= need) return;
  const rlim_t had = limit.rlim_cur;
  limit.rlim_cur = std::min(need, limit.rlim_max);
  TESSERA_REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= need,
                  Environment,
                  fmt::format("{} open files are needed, the limit is {}", need, had),
                  fmt::format("ulimit -n {}", need));
}

}  // namespace tessera::launch
