// SPDX-License-Identifier: Apache-2.0
// The CPU allocator of all tensors. It keeps freed blocks, because glibc returns large ones to the
// kernel and the page faults then make PyTorch 1.7x slower, and it counts every byte in the ledger
// of the allocating thread.
#pragma once

#include <cstdint>

namespace tessera::memory {

/// Registers the caching allocator as libtorch's CPU allocator. Call it before the first tensor is
/// made; later calls do nothing. Threads: any.
void install_caching_allocator();
/// Returns the bytes that the cache holds and that are not in use.
std::int64_t cached_bytes();
/// Gives cached blocks back to the kernel.
void release_cache();

}  // namespace tessera::memory
