// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/copy.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

constexpr std::uint8_t kUntouched = 0xee;

std::vector<std::uint8_t> numbered(std::size_t bytes) {
  std::vector<std::uint8_t> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::uint8_t>(i * 131 + i / 251);
  return out;
}

TEST(Copy, IsExactFromAndToAnyAddressAndTouchesNothingElse) {
  // Around a cache line, and around the size from which copies bypass the caches.
  for (const std::size_t bytes : {std::size_t{0},
                                  std::size_t{1},
                                  std::size_t{63},
                                  std::size_t{64},
                                  std::size_t{200},
                                  kPastCaches - 1,
                                  kPastCaches,
                                  kPastCaches + 77}) {
    for (const auto& [from_shift, to_shift] :
         {std::pair<std::size_t, std::size_t>{0, 0}, {1, 0}, {0, 3}, {17, 63}}) {
      const std::vector<std::uint8_t> from = numbered(bytes + from_shift);
      std::vector<std::uint8_t> to(bytes + to_shift + 64, kUntouched);
      std::vector<std::uint8_t> expected = to;
      std::copy(from.begin() + static_cast<std::ptrdiff_t>(from_shift),
                from.end(),
                expected.begin() + static_cast<std::ptrdiff_t>(to_shift));

      copy_bytes(to.data() + to_shift, from.data() + from_shift, bytes);
      EXPECT_TRUE(to == expected) << bytes << " bytes, " << from_shift << " to " << to_shift;

      std::fill(to.begin(), to.end(), kUntouched);
      copy_past_caches(to.data() + to_shift, from.data() + from_shift, bytes);
      finish_past_caches();
      EXPECT_TRUE(to == expected) << bytes << " bytes past the caches";
    }
  }
}

}  // namespace
}  // namespace tessera::comm
