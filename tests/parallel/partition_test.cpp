// SPDX-License-Identifier: Apache-2.0
// labels: fast
#include "tessera/parallel/pipeline/partition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/philox.h"

namespace tessera::parallel {
namespace {

using Bounds = std::vector<int>;

double heaviest(const std::vector<double>& weights, const Bounds& bounds) {
  double most = 0;
  for (std::size_t j = 0; j + 1 < bounds.size(); ++j) {
    double sum = 0;
    for (int i = bounds[j]; i < bounds[j + 1]; ++i)
      sum += weights[static_cast<std::size_t>(i)];
    most = std::max(most, sum);
  }
  return most;
}

/// The heaviest part of the best of all partitions, by trying them all.
double best_of_all(const std::vector<double>& weights, int parts) {
  const int n = static_cast<int>(weights.size());
  double best = HUGE_VAL;
  Bounds bounds = {0};
  const std::function<void()> extend = [&] {
    if (static_cast<int>(bounds.size()) == parts) {
      bounds.push_back(n);
      best = std::min(best, heaviest(weights, bounds));
      bounds.pop_back();
      return;
    }
    for (int next = bounds.back() + 1; next < n; ++next) {
      bounds.push_back(next);
      extend();
      bounds.pop_back();
    }
  };
  extend();
  return best;
}

/// n // p each and one more for the first n mod p; bound i is min(i, n) where n <= p.
TEST(UniformBounds, AreDeepSpeeds) {
  EXPECT_EQ(uniform_bounds(8, 4), (Bounds{0, 2, 4, 6, 8}));
  EXPECT_EQ(uniform_bounds(10, 4), (Bounds{0, 3, 6, 8, 10}));
  EXPECT_EQ(uniform_bounds(3, 4), (Bounds{0, 1, 2, 3, 3}));
  EXPECT_EQ(uniform_bounds(5, 1), (Bounds{0, 5}));
}

/// Each chunk has n / chunks; in it every stage has the floor, and the last ones have one more.
TEST(UniformLastBounds, AreColossalAIs) {
  EXPECT_EQ(uniform_last_bounds(8, 4), (Bounds{0, 2, 4, 6, 8}));
  EXPECT_EQ(uniform_last_bounds(10, 4), (Bounds{0, 2, 4, 7, 10}));
  EXPECT_EQ(uniform_last_bounds(5, 1), (Bounds{0, 5}));
  EXPECT_EQ(uniform_last_bounds(12, 4, 3), (Bounds{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(uniform_last_bounds(14, 3, 2), (Bounds{0, 2, 4, 7, 9, 11, 14}));
}

TEST(BalancedBounds, MakeTheHeaviestPartAsLightAsAnyPartitionDoes) {
  const Philox random{11};
  for (std::uint64_t round = 0; round < 60; ++round) {
    std::vector<double> weights;
    for (std::uint64_t i = 0; i < 4 + round % 6; ++i)
      weights.push_back(static_cast<double>(random(64 * round + i)[0] % 9));
    for (int parts = 1; parts <= static_cast<int>(weights.size()); ++parts) {
      const Bounds bounds = balanced_bounds(weights, parts);
      ASSERT_EQ(bounds.size(), static_cast<std::size_t>(parts) + 1);
      EXPECT_EQ(bounds.front(), 0);
      EXPECT_EQ(bounds.back(), static_cast<int>(weights.size()));
      for (int j = 0; j < parts; ++j)
        EXPECT_LT(bounds[static_cast<std::size_t>(j)], bounds[static_cast<std::size_t>(j) + 1]);
      EXPECT_EQ(heaviest(weights, bounds), best_of_all(weights, parts));
    }
  }
}

TEST(BalancedBounds, KeepTheLighterPartsEvenAsWell) {
  EXPECT_EQ(balanced_bounds(std::vector<double>{9, 1, 1, 1, 1}, 3), (Bounds{0, 1, 3, 5}));
  EXPECT_EQ(balanced_bounds(std::vector<double>{0, 0, 5, 0}, 4), (Bounds{0, 1, 2, 3, 4}));
}

TEST(BalancedBounds, TakeOnlyPartsThatFit) {
  const std::vector<double> weights = {1, 1, 1, 1, 1, 1};
  // The first part has less room than the others.
  const auto fits = [](int part, int first, int last) {
    return last - first <= (part == 0 ? 1 : 3);
  };

  EXPECT_EQ(balanced_bounds(weights, 3, fits), (Bounds{0, 1, 3, 6}));
  EXPECT_EQ(balanced_bounds(weights, 2, fits), Bounds());
}

}  // namespace
}  // namespace tessera::parallel
