// SPDX-License-Identifier: Apache-2.0
// labels: fast
// States in fewer bits that are read in parts, as a save reads them from a disk.
#include "tessera/parallel/widened_state.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/memory/tiers/tier.h"
#include "tessera/parallel/kept_state.h"

namespace tessera::parallel {
namespace {

class Bytes final : public ByteSource {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    ASSERT_LE(begin + out.size(), bytes_.size());
    std::ranges::copy(bytes_.subspan(begin, out.size()), out.begin());
  }

 private:
  std::span<const std::byte> bytes_;
};

// Ranges that begin and end in the middle of blocks and of values.
TEST(WidenedStates, HaveTheValuesOfTheStateInMemory) {
  using optim::KeptIn;
  constexpr std::int64_t kNumel = 5 * kStateBlock + 77;
  for (const auto& [kept_in, type] : {std::pair(KeptIn::Type, DType::F32),
                                      std::pair(KeptIn::Type, DType::BF16),
                                      std::pair(KeptIn::Type, DType::F16),
                                      std::pair(KeptIn::Codes8, DType::F32),
                                      std::pair(KeptIn::Codes8Positive, DType::F32),
                                      std::pair(KeptIn::Codes4, DType::F32),
                                      std::pair(KeptIn::Codes4Positive, DType::F32)}) {
    SCOPED_TRACE(static_cast<int>(kept_in));
    KeptState state = KeptState::resting(kept_in, type, kNumel);
    const memory::StagingMemory memory(state.bytes());
    state.attach(memory.bytes());
    const at::Tensor values =
        at::randn({kNumel}, at::make_generator<at::CPUGeneratorImpl>(3), at::kFloat);
    const bool positive = kept_in == KeptIn::Codes8Positive || kept_in == KeptIn::Codes4Positive;
    state.take(positive ? values.abs() : values);
    const at::Tensor wanted = state.widened();
    const auto stored = std::make_shared<const Bytes>(memory.bytes());
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>(0, kNumel),
                                       {300, 500},
                                       {kStateBlock, kStateBlock},
                                       {kNumel - 1, 1}}) {
      const auto source = widened_state(stored, kept_in, type, kNumel, first, count);
      ASSERT_EQ(source->size(), static_cast<std::uint64_t>(4 * count));
      const auto* const bytes = reinterpret_cast<const std::byte*>(wanted.const_data_ptr<float>());
      for (const std::size_t part : {std::size_t{7}, std::size_t{1024}, source->size()}) {
        std::vector<std::byte> all(source->size());
        for (std::size_t at = 0; at < all.size(); at += part)
          source->read(at, std::span(all).subspan(at, std::min(part, all.size() - at)));
        EXPECT_EQ(std::memcmp(all.data(), bytes + 4 * first, all.size()), 0)
            << first << ", " << count << " in parts of " << part;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::parallel
