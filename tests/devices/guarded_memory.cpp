// SPDX-License-Identifier: Apache-2.0
#include "devices/guarded_memory.h"

#include <cstdlib>
#include <iterator>
#include <stdexcept>

#include <sys/mman.h>

namespace tessera::test {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

void* GuardedMemory::allocate(std::size_t bytes) {
  const std::size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  if (mapped == 0) return nullptr;
  void* const at = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no memory for a simulated device");
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(at)] = {bytes, mapped, 0, 0};
  return at;
}

void GuardedMemory::release(void* at) {
  if (at == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(static_cast<std::byte*>(at));
  munmap(at, block->second.mapped);
  blocks_.erase(block);
}

std::size_t GuardedMemory::bytes_at(const void* at) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(static_cast<const std::byte*>(at));
  return block == blocks_.end() ? 0 : block->second.bytes;
}

GuardedMemory::Open::Open(GuardedMemory& memory, const void* at, Use use)
    : memory_(memory), at_(static_cast<const std::byte*>(at)), use_(use) {
  memory_.open(at_, use_, 1);
}

GuardedMemory::Open::~Open() {
  memory_.open(at_, use_, -1);
}

// A tensor may begin anywhere in its block.
void GuardedMemory::open(const std::byte* at, Use use, int change) {
  if (at == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto block = std::prev(blocks_.upper_bound(at));
  if (at >= block->first + block->second.mapped) std::abort();
  GuardedMemory::change(block->first, block->second, use, change);
}

void GuardedMemory::change(const std::byte* at, Block& block, Use use, int by) {
  const auto access = [&] {
    return block.writers > 0 ? PROT_READ | PROT_WRITE : block.readers > 0 ? PROT_READ : PROT_NONE;
  };
  const int before = access();
  (use == Use::Read ? block.readers : block.writers) += by;
  if (access() == before) return;
  if (mprotect(const_cast<std::byte*>(at), block.mapped, access()) != 0) std::abort();
}

GuardedMemory::OpenAll::OpenAll(GuardedMemory& memory) : memory_(memory), lock_(memory.mutex_) {
  for (auto& [at, block] : memory_.blocks_)
    change(at, block, Use::Write, 1);
}

GuardedMemory::OpenAll::~OpenAll() {
  for (auto& [at, block] : memory_.blocks_)
    change(at, block, Use::Write, -1);
}

}  // namespace tessera::test
