// SPDX-License-Identifier: Apache-2.0
// Copies between the memories of ranks. Large copies bypass the caches: a cache line that is
// overwritten completely need not be read first, and data larger than a core's share of the cache
// would not stay there. The C library only does so for sizes near that of the whole cache, which on
// a virtual machine is that of the whole host.
#pragma once

#include <cstddef>

namespace tessera::comm {

/// Writes of this many bytes or more bypass the caches.
inline constexpr std::size_t kPastCaches = std::size_t{4} << 20;

/// Like memcpy(); the memories must not overlap. Threads and processes that learn of the copy
/// through a later atomic store see all of it.
void copy_bytes(void* to, const void* from, std::size_t bytes);

/// Copies past the caches, in pieces of any size; other threads are guaranteed to see them only
/// after finish_past_caches().
void copy_past_caches(void* to, const void* from, std::size_t bytes);
void finish_past_caches();

}  // namespace tessera::comm
