// SPDX-License-Identifier: Apache-2.0
// The hosts with which a job goes on; tests/cli/survive_test.sh tests the training after it.
#include "tessera/launch/elastic_hosts.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::launch {
namespace {

HostPool hosts(std::initializer_list<int> slots) {
  HostPool pool;
  for (const int count : slots) {
    pool.push_back({"node-" + std::to_string(pool.size()), {}});
    for (int slot = 0; slot < count; ++slot)
      pool.back().slots.push_back(slot);
  }
  return pool;
}

/// Options by which the ranks must divide `batch`.
ElasticOptions sharing(int batch, int min_hosts, int max_hosts = 0) {
  ElasticOptions options;
  options.min_hosts = min_hosts;
  options.max_hosts = max_hosts;
  options.words = [batch](int ranks) -> std::optional<std::vector<std::string>> {
    if (batch % ranks != 0) return std::nullopt;
    return std::vector<std::string>{std::to_string(ranks)};
  };
  return options;
}

TEST(ElasticHosts, UseAllSlotsIfTheyCanShareTheBatch) {
  const auto choice = choose_hosts_of(hosts({2, 2}), sharing(8, 1));

  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->pool, hosts({2, 2}));
  EXPECT_EQ(choice->words, std::vector<std::string>{"4"});
}

TEST(ElasticHosts, LeaveSlotsUnusedThatCannotShareTheBatch) {
  const auto three_of_four = choose_hosts_of(hosts({4, 4, 4, 4}), sharing(12, 1));
  const auto uneven = choose_hosts_of(hosts({1, 4}), sharing(8, 1));

  ASSERT_TRUE(three_of_four);
  EXPECT_EQ(three_of_four->pool, hosts({3, 3, 3, 3}));
  ASSERT_TRUE(uneven);
  EXPECT_EQ(uneven->pool, hosts({1, 3}));
}

TEST(ElasticHosts, KeepWithinTheirBounds) {
  EXPECT_FALSE(choose_hosts_of(hosts({1}), sharing(8, 2)));
  EXPECT_FALSE(choose_hosts_of(hosts({1, 1, 1}), sharing(2, 3)));
  const auto spare = choose_hosts_of(hosts({2, 2, 2}), sharing(8, 1, 2));
  ASSERT_TRUE(spare);
  EXPECT_EQ(spare->pool, hosts({2, 2}));
}

}  // namespace
}  // namespace tessera::launch
