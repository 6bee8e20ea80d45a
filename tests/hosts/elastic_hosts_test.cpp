// SPDX-License-Identifier: Apache-2.0
// The hosts with which a job goes on; tests/cli/survive_test.sh tests the training after it.
#include "tessera/hosts/elastic_hosts.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/files.h"

namespace tessera::hosts {
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

// The agents are scripts on this host, of which the second one ends as an ssh that finds nobody.
TEST(ElasticHosts, EndWithTheNumberOfThoseLeftAndTheCause) {
  const files::TempDir folder;
  const std::string program = (folder.path() / "agent.sh").string();
  files::write_atomic(program,
                      "#!/bin/bash\nread -r first; read -r secret; read -r host rest\n"
                      "[[ $host == 0 ]] || exit 255\n");
  chmod(program.c_str(), 0700);
  RemoteOptions options;
  options.pool = {{"127.0.0.1", {0}}, {"127.0.0.2", {0}}};
  options.program = program;
  options.notice = [](const std::string&) {};
  ElasticOptions elastic = sharing(8, 2);
  elastic.restarts = 1;
  elastic.probe_s = 100.0;
  elastic.patience_s = 0.1;

  const HostsEnd end = run_elastic(options, elastic);

  EXPECT_EQ(end.code, 8);
  ASSERT_TRUE(end.error);
  EXPECT_THAT(end.error->what,
              testing::AllOf(testing::HasSubstr("1 of 2 hosts is left, and at least 2 are needed"),
                             testing::HasSubstr("host 127.0.0.2: ssh cannot reach it")));
  EXPECT_THAT(end.error->fix, testing::HasSubstr("run.min_hosts"));
}

}  // namespace
}  // namespace tessera::hosts
