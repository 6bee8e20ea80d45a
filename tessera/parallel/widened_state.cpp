// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/widened_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/nf4.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/resting_part.h"

namespace tessera::parallel {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// A range of a state in eight bits: codes, and a scale for each block of them.
class WidenedCodes final : public ByteSource {
 public:
  WidenedCodes(std::shared_ptr<const ByteSource> stored,
               const DynamicMap& map,
               std::int64_t numel,
               std::int64_t first,
               std::int64_t count)
      : stored_(std::move(stored)), map_(map), numel_(numel), first_(first), count_(count) {}

  [[nodiscard]] std::uint64_t size() const override {
    return static_cast<std::uint64_t>(count_) * sizeof(float);
  }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    TESSERA_ASSERT(begin + out.size() <= size());
    if (out.empty()) return;
    // Readers may ask for parts of a value, and blocks are decoded as a whole.
    const std::int64_t from = first_ + static_cast<std::int64_t>(begin / sizeof(float)),
                       to = first_ + static_cast<std::int64_t>(
                                         (begin + out.size() + sizeof(float) - 1) / sizeof(float));
    const std::int64_t block = from / kStateBlock,
                       blocks_end = (to + kStateBlock - 1) / kStateBlock;
    const std::int64_t at = block * kStateBlock, end = std::min(blocks_end * kStateBlock, numel_);
    const at::Tensor codes = at::empty({end - at}, at::kByte),
                     scales = at::empty({blocks_end - block}, at::kFloat),
                     wide = at::empty({end - at}, at::kFloat);
    stored_->read(static_cast<std::uint64_t>(at), bytes_of(codes));
    stored_->read(static_cast<std::uint64_t>(state_aligned(numel_) + 4 * block), bytes_of(scales));
    ops::from_codes8(codes, scales, kStateBlock, map_, wide);
    const std::size_t skipped =
        static_cast<std::size_t>(from - at) * sizeof(float) + begin % sizeof(float);
    std::memcpy(out.data(), bytes_of(wide).data() + skipped, out.size());
  }

 private:
  std::shared_ptr<const ByteSource> stored_;
  const DynamicMap& map_;
  std::int64_t numel_, first_, count_;
};

}  // namespace

std::shared_ptr<const ByteSource> widened_state(std::shared_ptr<const ByteSource> stored,
                                                optim::KeptIn kept_in,
                                                DType type,
                                                std::int64_t numel,
                                                std::int64_t first,
                                                std::int64_t count) {
  if (kept_in == optim::KeptIn::Type) {
    const std::uint64_t size = size_of(type);
    return widened(std::make_shared<const ByteRange>(std::move(stored),
                                                     static_cast<std::uint64_t>(first) * size,
                                                     static_cast<std::uint64_t>(count) * size),
                   type);
  }
  const bool both = kept_in == optim::KeptIn::Codes8;
  return std::make_shared<const WidenedCodes>(
      std::move(stored), both ? DynamicMap::both() : DynamicMap::positive(), numel, first, count);
}

}  // namespace tessera::parallel
