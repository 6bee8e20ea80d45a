// SPDX-License-Identifier: Apache-2.0
// The CPU allocator under every tensor: keeps freed blocks, because glibc gives large ones back to
// the kernel and page faults then cost PyTorch 1.7x; and counts every byte in the ledger of the
// thread that asked.
#pragma once

#include <cstdint>

namespace tessera::memory {

/// Registers the caching allocator as libtorch's CPU allocator. Once a process, before the first
/// tensor; later calls do nothing. Threads: any.
void install_caching_allocator();
/// Bytes that the cache holds and nobody uses.
std::int64_t cached_bytes();
/// Gives cached blocks back to the kernel.
void release_cache();

}  // namespace tessera::memory
