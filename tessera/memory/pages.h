// SPDX-License-Identifier: Apache-2.0
// Memory mappings in huge pages, and annotations of freed blocks for the address sanitizer.
#pragma once

#include <cstddef>

namespace tessera::memory {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Returns zeroed private memory, a multiple of 2 MiB and aligned to 2 MiB, with a request for huge
/// pages; null if the kernel refuses.
std::byte* map_pages(std::size_t bytes) noexcept;
void unmap_pages(std::byte* data, std::size_t bytes) noexcept;
/// Gives the pages that are completely inside the range back to the kernel; the addresses stay
/// valid and read as zero.
void discard_pages(std::byte* data, std::size_t bytes) noexcept;

/// Makes access to the bytes an error under the address sanitizer (forbid), or legal again (allow).
/// No effect in other builds.
void forbid(void* data, std::size_t bytes) noexcept;
void allow(void* data, std::size_t bytes) noexcept;

}  // namespace tessera::memory
