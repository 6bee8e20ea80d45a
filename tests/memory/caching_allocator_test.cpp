// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"

namespace tessera::memory {
namespace {

class CachingAllocatorTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_caching_allocator(); }
};

TEST_F(CachingAllocatorTest, ServesTensors) {
  install_caching_allocator();  // a second call changes nothing
  Ledger ledger;
  const ScopedLedger scope(ledger);
  const ScopedTag tag(Tag::Parameters);

  at::Tensor x = at::ones({1000, 1000});
  EXPECT_EQ(ledger.usage().current[0], 4'000'000);
  EXPECT_EQ(x.sum().item<double>(), 1e6);
  x.reset();

  EXPECT_EQ(ledger.usage().total, 0);
  EXPECT_GE(cached_bytes(), 4'000'000);
}

TEST_F(CachingAllocatorTest, ReusesStorage) {
  void* const first = at::empty({512, 768}).data_ptr();

  EXPECT_EQ(at::empty({512, 768}).data_ptr(), first);
}

TEST_F(CachingAllocatorTest, GivesTheCacheBack) {
  at::empty({1 << 20});
  ASSERT_GT(cached_bytes(), 0);

  release_cache();

  EXPECT_EQ(cached_bytes(), 0);
}

TEST_F(CachingAllocatorTest, AllowsResizing) {
  at::Tensor x = at::arange(100, at::kFloat);

  x.resize_({100000});

  EXPECT_EQ(x[99].item<float>(), 99.0F);
}

}  // namespace
}  // namespace tessera::memory
