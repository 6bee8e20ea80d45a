// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/widened_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/four_bits.h"
#include "tessera/ops/nf4.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/resting_part.h"

namespace tessera::parallel {
namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

/// How a state is encoded: one of the maps, whose other is nullptr.
struct Coding {
  const DynamicMap* eight = nullptr;
  const FourBitMap* four = nullptr;
  [[nodiscard]] std::int64_t block() const {
    return four != nullptr ? kFourBitStateBlock : kStateBlock;
  }
  /// The bytes of the codes of `numel` values.
  [[nodiscard]] std::int64_t bytes(std::int64_t numel) const {
    return four != nullptr ? (numel + 1) / 2 : numel;
  }
  void decode(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& wide) const {
    if (four != nullptr) {
      ops::from_four_bits(codes, scales, block(), *four, wide);
    } else {
      ops::from_codes8(codes, scales, block(), *eight, wide);
    }
  }
};

Coding coding_of(optim::KeptIn kept_in) {
  switch (kept_in) {
    case optim::KeptIn::Codes8:
      return {.eight = &DynamicMap::both()};
    case optim::KeptIn::Codes8Positive:
      return {.eight = &DynamicMap::positive()};
    case optim::KeptIn::Codes4:
      return {.four = &FourBitMap::both()};
    case optim::KeptIn::Codes4Positive:
      return {.four = &FourBitMap::positive()};
    case optim::KeptIn::Type:
      break;
  }
  TESSERA_ASSERT(false);
  return {};
}

/// A range of a state in eight or four bits: codes, and a scale for each block of them.
class WidenedCodes final : public ByteSource {
 public:
  WidenedCodes(std::shared_ptr<const ByteSource> stored,
               const Coding& coding,
               std::int64_t numel,
               std::int64_t first,
               std::int64_t count)
      : stored_(std::move(stored)), coding_(coding), numel_(numel), first_(first), count_(count) {}

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
    const std::int64_t values = coding_.block(), block = from / values,
                       blocks_end = (to + values - 1) / values;
    const std::int64_t at = block * values, end = std::min(blocks_end * values, numel_);
    const at::Tensor codes = at::empty({coding_.bytes(end - at)}, at::kByte),
                     scales = at::empty({blocks_end - block}, at::kFloat),
                     wide = at::empty({end - at}, at::kFloat);
    stored_->read(static_cast<std::uint64_t>(coding_.bytes(at)), bytes_of(codes));
    stored_->read(static_cast<std::uint64_t>(state_aligned(coding_.bytes(numel_)) + 4 * block),
                  bytes_of(scales));
    coding_.decode(codes, scales, wide);
    const std::size_t skipped =
        static_cast<std::size_t>(from - at) * sizeof(float) + begin % sizeof(float);
    std::memcpy(out.data(), bytes_of(wide).data() + skipped, out.size());
  }

 private:
  std::shared_ptr<const ByteSource> stored_;
  Coding coding_;
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
  return std::make_shared<const WidenedCodes>(
      std::move(stored), coding_of(kept_in), numel, first, count);
}

}  // namespace tessera::parallel
