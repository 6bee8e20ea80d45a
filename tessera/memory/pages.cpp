// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/pages.h"

#include <cstdint>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tessera::memory {

std::byte* map_pages(std::size_t bytes) noexcept {
  // The kernel aligns to 4 KiB only: map one huge page more and unmap the excess.
  const std::size_t whole = bytes + kHugePageBytes;
  if (whole < bytes) return nullptr;
  void* const raw =
      mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(raw);
  const std::size_t before = round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePageBytes) -
                             reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePageBytes - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}

void unmap_pages(std::byte* data, std::size_t bytes) noexcept {
  allow(data, bytes);
  munmap(data, bytes);
}

void discard_pages(std::byte* data, std::size_t bytes) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = round_up(begin, kPageBytes);
  const std::uintptr_t end = (begin + bytes) / kPageBytes * kPageBytes;
  if (first < end) madvise(data + (first - begin), end - first, MADV_DONTNEED);
}

#if defined(__SANITIZE_ADDRESS__)
void forbid(void* data, std::size_t bytes) noexcept {
  __asan_poison_memory_region(data, bytes);
}
void allow(void* data, std::size_t bytes) noexcept {
  __asan_unpoison_memory_region(data, bytes);
}
#else
void forbid(void*, std::size_t) noexcept {}
void allow(void*, std::size_t) noexcept {}
#endif

}  // namespace tessera::memory
