// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/kv_cache.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

at::Tensor tokens(std::int64_t first, std::int64_t count) {
  return at::arange(first, first + count, at::kFloat)
      .view({1, 1, count, 1})
      .expand({2, 3, count, 4});
}

TEST(KvCache, ReturnsWhatWasWritten) {
  KvCache cache;

  cache.write(0, tokens(0, 5), tokens(100, 5), 16);
  cache.write(5, tokens(5, 1), tokens(105, 1), 16);

  EXPECT_EQ(cache.length(), 6);
  EXPECT_TRUE(at::equal(cache.keys(), tokens(0, 6)));
  EXPECT_TRUE(at::equal(cache.values(), tokens(100, 6)));
}

TEST(KvCache, StaysInPlaceWithinItsCapacityAndGrowsBeyond) {
  KvCache cache;
  cache.write(0, tokens(0, 2), tokens(0, 2), 4);
  const void* before = cache.keys().data_ptr();

  cache.write(2, tokens(2, 2), tokens(2, 2), 4);
  EXPECT_EQ(cache.keys().data_ptr(), before);
  cache.write(4, tokens(4, 3), tokens(4, 3), 4);

  EXPECT_TRUE(at::equal(cache.keys(), tokens(0, 7)));
}

TEST(KvCache, ForgetsWhatIsWrittenOver) {
  KvCache cache;
  cache.write(0, tokens(0, 6), tokens(0, 6), 8);

  cache.write(0, tokens(50, 3), tokens(50, 3), 8);

  EXPECT_TRUE(at::equal(cache.keys(), tokens(50, 3)));
}

TEST(KvCache, RefusesAGap) {
  KvCache cache;
  cache.write(0, tokens(0, 2), tokens(0, 2), 8);

  EXPECT_THROW(cache.write(3, tokens(3, 1), tokens(3, 1), 8), Error);
}

}  // namespace
}  // namespace tessera::nn
