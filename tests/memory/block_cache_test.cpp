// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/block_cache.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/memory/pages.h"

namespace tessera::memory {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// One of each kind: a size class, a part of a segment, a separate mapping.
constexpr std::size_t kSizes[] = {1000, 3 * kMiB, 100 * kMiB};

constexpr rlim_t kFinite = rlim_t{1} << 46;  // in bytes: more than any test needs

/// Sets a soft limit of this process while it lives.
class Limit {
 public:
  Limit(__rlimit_resource resource, rlim_t soft) : resource_(resource) {
    getrlimit(resource_, &before_);
    const rlimit now{std::min(soft, before_.rlim_max), before_.rlim_max};
    setrlimit(resource_, &now);
  }
  ~Limit() { setrlimit(resource_, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

std::uintptr_t address(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

TEST(BlockCacheReuse, GivesAFreedBlockOutAgain) {
  BlockCache cache;
  for (const std::size_t bytes : kSizes) {
    void* const first = cache.allocate(bytes);
    cache.free(first);

    void* const second = cache.allocate(bytes);

    EXPECT_EQ(second, first) << bytes;
    cache.free(second);
  }
}

TEST(BlockCacheReuse, NeverGivesOneBlockTwice) {
  BlockCache cache;
  std::mt19937 random(7);
  std::vector<std::pair<std::byte*, std::size_t>> live;

  for (int i = 0; i < 4000; ++i) {
    if (live.size() > 40 || (!live.empty() && random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      const auto [data, bytes] = live.back();
      ASSERT_EQ(data[0], static_cast<std::byte>(bytes));
      ASSERT_EQ(data[bytes - 1], static_cast<std::byte>(bytes));
      cache.free(data);
      live.pop_back();
    } else {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 20));
      auto* const data = static_cast<std::byte*>(cache.allocate(bytes));
      data[0] = data[bytes - 1] = static_cast<std::byte>(bytes);
      live.emplace_back(data, bytes);
    }
  }

  for (const auto& [data, bytes] : live) {
    EXPECT_EQ(data[0], static_cast<std::byte>(bytes));
    cache.free(data);
  }
}

TEST(BlockCacheReuse, CutsLargeFreeBlocksAndMergesThemAgain) {
  BlockCache cache;
  void* const whole = cache.allocate(12 * kMiB);
  cache.free(whole);

  void* const left = cache.allocate(4 * kMiB);
  void* const middle = cache.allocate(4 * kMiB);
  void* const right = cache.allocate(4 * kMiB);

  EXPECT_EQ(left, whole);
  EXPECT_EQ(address(middle), address(left) + 4 * kMiB);
  EXPECT_EQ(address(right), address(middle) + 4 * kMiB);
  cache.free(left);
  cache.free(right);
  cache.free(middle);
  EXPECT_EQ(cache.allocate(12 * kMiB), whole);
  cache.free(whole);
}

TEST(BlockCacheReuse, KeepsAMappingForRequestsOfItsOwnSize) {
  BlockCache cache;
  void* const large = cache.allocate(100 * kMiB);
  cache.free(large);

  void* const smaller = cache.allocate(66 * kMiB);
  void* const similar = cache.allocate(90 * kMiB);

  EXPECT_NE(smaller, large);
  EXPECT_EQ(similar, large);
  cache.free(smaller);
  cache.free(similar);
}

TEST(BlockCacheAlignment, Is64ForAllAndTwoMiBForMappings) {
  BlockCache cache;
  for (const std::size_t bytes : {std::size_t{1},
                                  std::size_t{65},
                                  std::size_t{5000},
                                  200 * kMiB / 1024,
                                  kMiB,
                                  3 * kMiB,
                                  65 * kMiB,
                                  100 * kMiB}) {
    void* const data = cache.allocate(bytes);

    EXPECT_EQ(address(data) % 64, 0U) << bytes;
    if (bytes > BlockCache::kPooledBytes) {
      EXPECT_EQ(address(data) % kHugePageBytes, 0U) << bytes;
    }
    std::memset(data, 1, bytes);
    cache.free(data);
  }
}

TEST(BlockCacheLedger, CountsWhatWasAskedFor) {
  BlockCache cache;
  Ledger ledger;
  const ScopedLedger scope(ledger);
  for (const std::size_t bytes : kSizes) {
    const ScopedTag tag(Tag::Gradients);
    ledger.reset_peak();

    void* const data = cache.allocate(bytes);
    EXPECT_EQ(ledger.usage().current[static_cast<int>(Tag::Gradients)],
              static_cast<std::int64_t>(bytes));
    cache.free(data);

    EXPECT_EQ(ledger.usage().total, 0);
    EXPECT_EQ(ledger.usage().total_peak, static_cast<std::int64_t>(bytes));
  }
}

TEST(BlockCacheLedger, IsRightWhenAnotherThreadFreesUnderAnotherTag) {
  BlockCache cache;
  Ledger mine, other;
  const ScopedLedger scope(mine);
  for (const std::size_t bytes : kSizes) {
    void* const data = cache.allocate(bytes);

    std::thread([&] {
      const ScopedLedger theirs(other);
      const ScopedTag tag(Tag::Optimizer);
      cache.free(data);
    }).join();

    EXPECT_EQ(mine.usage().total, 0);
    EXPECT_EQ(other.usage().total, 0);
    EXPECT_EQ(other.usage().total_peak, 0);
  }
}

TEST(BlockCacheLedger, MayDieBeforeItsBlocks) {
  BlockCache cache;
  std::vector<void*> blocks;
  {
    Ledger ledger;
    const ScopedLedger scope(ledger);
    for (const std::size_t bytes : kSizes)
      blocks.push_back(cache.allocate(bytes));
  }

  for (void* const block : blocks)
    cache.free(block);
}

TEST(BlockCacheRelease, GivesEverythingFreeBackAndCanGoOn) {
  BlockCache cache;
  std::vector<void*> blocks;
  for (const std::size_t bytes : kSizes)
    blocks.push_back(cache.allocate(bytes));
  void* const kept = cache.allocate(2 * kMiB);
  std::memset(kept, 7, 2 * kMiB);
  EXPECT_EQ(cache.cached_bytes(), 0);
  for (void* const block : blocks)
    cache.free(block);
  EXPECT_GE(cache.cached_bytes(), static_cast<std::int64_t>(103 * kMiB));

  cache.release();

  EXPECT_EQ(cache.cached_bytes(), 0);
  EXPECT_EQ(static_cast<std::byte*>(kept)[kMiB], std::byte{7});
  void* const again = cache.allocate(3 * kMiB);
  std::memset(again, 1, 3 * kMiB);
  cache.free(again);
  cache.free(kept);
}

TEST(BlockCacheRelease, HappensByItselfBeforeTheCacheSwells) {
  BlockCache cache;

  // Ever larger mappings, none of which fits into an earlier one, one after the other.
  for (std::size_t bytes = 100 * kMiB; bytes < 1000 * kMiB; bytes += bytes / 2) {
    cache.free(cache.allocate(bytes));
    const auto limit = static_cast<std::int64_t>(BlockCache::kSlack * static_cast<double>(bytes)) +
                       static_cast<std::int64_t>(66 * kMiB);
    EXPECT_LE(cache.cached_bytes(), limit);
  }
}

TEST(BlockCacheErrors, NameTheNumbers) {
  BlockCache cache;
  for (const std::size_t bytes : {std::size_t{1} << 50, SIZE_MAX - 100}) {
    try {
      cache.allocate(bytes);
      FAIL() << "had " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Memory);
      EXPECT_NE(error.text().find("activations"), std::string::npos) << error.text();
    }
  }
  cache.free(cache.allocate(100));
}

TEST(BlockCacheErrors, NameTheLimitsOfTheProcessFirst) {
  BlockCache cache;
  const auto fix = [&cache] {
    try {
      cache.allocate(SIZE_MAX / 8);
    } catch (const Error& error) {
      return error.fix();
    }
    return std::string("had them");
  };
  const Limit space(RLIMIT_AS, RLIM_INFINITY), data(RLIMIT_DATA, RLIM_INFINITY);
  EXPECT_EQ(fix().find("use a smaller"), 0U);

  {
    const Limit finite(RLIMIT_AS, kFinite);
    EXPECT_EQ(fix().find("raise the limit on address space (ulimit -v), or "), 0U);
  }
  const Limit finite(RLIMIT_DATA, kFinite);
  EXPECT_EQ(fix().find("raise the limit on data (ulimit -d), or "), 0U);
}

TEST(BlockCacheEdges, NothingIsNull) {
  BlockCache cache;

  EXPECT_EQ(cache.allocate(0), nullptr);
  cache.free(nullptr);
}

}  // namespace
}  // namespace tessera::memory
