// SPDX-License-Identifier: Apache-2.0
// Copies between ranks' memories. Large ones are written past the caches: a line that is
// overwritten whole need not be read first, and what is larger than a core's share of the cache
// would not stay there. The C library does so only from most of the cache's size on, which on a
// virtual machine is that of the whole host.
#pragma once

#include <cstddef>

namespace tessera::comm {

/// Writes of this many bytes and more go past the caches.
inline constexpr std::size_t kPastCaches = std::size_t{4} << 20;

/// memcpy(); the memories do not overlap. Later reads of other threads and processes that learn of
/// the copy by an atomic store see all of it.
void copy_bytes(void* to, const void* from, std::size_t bytes);

/// A copy past the caches in pieces of any size; they are visible to others after
/// finish_past_caches().
void copy_past_caches(void* to, const void* from, std::size_t bytes);
void finish_past_caches();

}  // namespace tessera::comm
