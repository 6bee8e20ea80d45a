// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/caching_allocator.h"

#include <limits>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "tessera/memory/block_cache.h"

namespace tessera::memory {
namespace {

// Never destroyed: tensors in static storage are freed after all other objects.
BlockCache& cache() {
  static auto* const cache = new BlockCache;
  return *cache;
}

void free_block(void* data) {
  cache().free(data);
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = cache().allocate(bytes);
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_caching_allocator() {
  static const bool once = [] {
    c10::SetCPUAllocator(new CachingAllocator, std::numeric_limits<std::uint8_t>::max());
    return true;
  }();
  static_cast<void>(once);
}

std::int64_t cached_bytes() {
  return cache().cached_bytes();
}
void release_cache() {
  cache().release();
}

}  // namespace tessera::memory
