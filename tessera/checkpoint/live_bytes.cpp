// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/live_bytes.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

LiveBytes::LiveBytes(const std::vector<PieceBytes>& pieces) {
  for (const PieceBytes& piece : pieces) {
    if (piece.bytes.empty()) continue;
    const bool fresh = left_.try_emplace(piece.bytes.data(), piece.bytes).second;
    TESSERA_REQUIRE(
        fresh, Bug, "saving tensor \"" + piece.name + "\": another piece has the same memory", "");
  }
}

void LiveBytes::read(std::span<const std::byte> part, std::byte* to) {
  const std::lock_guard lock(mutex_);
  const auto after = left_.upper_bound(part.data());
  TESSERA_ASSERT(after != left_.begin());
  std::span<const std::byte>& left = std::prev(after)->second;
  TESSERA_ASSERT(part.size() <= left.size());
  std::memcpy(to, left.data(), part.size());
  left = left.subspan(part.size());
}

void LiveBytes::move_out(const CopyOut& copy) {
  const std::lock_guard lock(mutex_);
  std::vector<std::span<const std::byte>> spans;
  for (const auto& [at, left] : left_) {
    if (!left.empty()) spans.push_back(left);
  }
  if (memory_ != nullptr || spans.empty()) return;
  memory_ = copy(spans);
  auto copied = spans.begin();
  for (auto& [at, left] : left_) {
    if (!left.empty()) left = *copied++;
  }
}

}  // namespace tessera::checkpoint
