// SPDX-License-Identifier: Apache-2.0
// Address space from the kernel in huge pages, and what the address sanitizer is told about freed
// blocks.
#pragma once

#include <cstddef>

namespace tessera::memory {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Zeroed private memory, a multiple of 2 MiB and aligned to it, asking for huge pages; null when
/// refused.
std::byte* map_pages(std::size_t bytes) noexcept;
void unmap_pages(std::byte* data, std::size_t bytes) noexcept;
/// Gives the pages that lie wholly inside back; the addresses stay, and read as zero.
void discard_pages(std::byte* data, std::size_t bytes) noexcept;

/// Under the address sanitizer: touching the bytes is an error from now on, or allowed again.
/// Otherwise nothing.
void forbid(void* data, std::size_t bytes) noexcept;
void allow(void* data, std::size_t bytes) noexcept;

}  // namespace tessera::memory
