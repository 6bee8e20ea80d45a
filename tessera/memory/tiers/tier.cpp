// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/tiers/tier.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/memory/pages.h"

namespace tessera::memory {

Registry<TierFactory>& tiers() {
  static Registry<TierFactory> instance("memory tier");
  return instance;
}

StagingMemory::StagingMemory(std::int64_t bytes) {
  const std::size_t size = round_up(static_cast<std::size_t>(bytes), kPageBytes);
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size));
  TESSERA_REQUIRE(data != nullptr || size == 0,
                  Memory,
                  "there is no memory for a buffer of " + text::bytes(size),
                  "use fewer or smaller buffers");
  if (size > 0) std::memset(data, 0, size);
  bytes_ = {data, static_cast<std::size_t>(bytes)};
  charge_ = Charge::open(static_cast<std::int64_t>(size), current_tag());
}

StagingMemory::~StagingMemory() {
  std::free(bytes_.data());
  charge_.release();
}

StagingMemory::StagingMemory(StagingMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), charge_(std::exchange(other.charge_, {})) {}

StagingMemory& StagingMemory::operator=(StagingMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(charge_, other.charge_);
  return *this;
}

}  // namespace tessera::memory
