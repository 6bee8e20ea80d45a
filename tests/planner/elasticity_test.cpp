// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's choice of a batch. The expected numbers are those of its own tests and documentation.
#include "tessera/planner/elasticity.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

json::Value list(std::initializer_list<int> sizes) {
  json::Value out = json::Value::array();
  for (const int size : sizes)
    out.items().push_back(json::Value::integer(size));
  return out;
}

/// The example of DeepSpeed's documentation.
ElasticityOptions ten_thousand() {
  ElasticityOptions options;
  options.enabled = true;
  options.max_train_batch_size = 10000;
  options.micro_batch_sizes = list({8, 12, 16, 17});
  options.min_gpus = 32;
  options.max_gpus = 1500;
  options.version = 0.1;
  return options;
}

struct Solved {
  std::optional<ElasticBatch> batch;
  std::string problem;
};
Solved solve(const ElasticityOptions& options, std::int64_t ranks, std::int64_t data_ranks) {
  config::Problems problems;
  Solved out;
  out.batch = elastic_batch(options, ranks, data_ranks, problems, {});
  if (!problems.empty())
    out.problem = problems.list().front().what + "; " + problems.list().front().fix;
  return out;
}

TEST(Elasticity, ChoosesTheBatchThatTheMostNumbersOfRanksShare) {
  const Solved solved = solve(ten_thousand(), 64, 64);

  ASSERT_TRUE(solved.batch) << solved.problem;
  EXPECT_EQ(solved.batch->global, 9792);
  EXPECT_EQ(solved.batch->micro, 17);
  EXPECT_EQ(solved.batch->data_ranks.size(), 23U);
  for (const std::int64_t count : solved.batch->data_ranks) {
    const Solved at = solve(ten_thousand(), count, count);
    ASSERT_TRUE(at.batch) << count << ": " << at.problem;
    EXPECT_EQ(at.batch->global, 9792);
    EXPECT_EQ(9792 % (at.batch->micro * count), 0);
  }
}

TEST(Elasticity, NamesTheNumbersOfRanksThatCanShareTheBatch) {
  const Solved solved = solve(ten_thousand(), 128, 128);

  EXPECT_FALSE(solved.batch);
  EXPECT_THAT(solved.problem, HasSubstr("128 ranks cannot share a batch of 9792"));
  EXPECT_THAT(solved.problem, HasSubstr("32, 34, 36, 48, 51, 64"));
}

TEST(Elasticity, CountsNodesInVersionTwo) {
  ElasticityOptions options;
  options.enabled = true;
  options.num_gpus_per_node = 8;

  const Solved two_nodes = solve(options, 16, 16), seven_nodes = solve(options, 56, 56);

  // 2000 / 8 = 250 sequences for each rank of a node: 240 has the most divisors after 2, 4 and 6.
  ASSERT_TRUE(two_nodes.batch) << two_nodes.problem;
  EXPECT_EQ(two_nodes.batch->global, 1920);
  EXPECT_EQ(two_nodes.batch->micro, 6);
  // Seven nodes do not divide it: 2000 / (2 x 56) = 17 micro-batches of 2 are the most.
  ASSERT_TRUE(seven_nodes.batch) << seven_nodes.problem;
  EXPECT_EQ(seven_nodes.batch->global, 17 * 2 * 56);
  EXPECT_THAT(seven_nodes.batch->data_ranks, ElementsAre(56));
}

TEST(Elasticity, RefusesWhatContradictsItself) {
  ElasticityOptions sizes = ten_thousand();
  sizes.micro_batch_sizes = list({0});
  EXPECT_THAT(solve(sizes, 1, 1).problem, HasSubstr("[0] is no list"));
  ElasticityOptions large = ten_thousand();
  large.max_train_batch_size = 16;
  EXPECT_THAT(solve(large, 1, 1).problem, HasSubstr("17 is larger"));
  ElasticityOptions version = ten_thousand();
  version.version = 0.3;
  EXPECT_THAT(solve(version, 1, 1).problem, HasSubstr("0.1 or 0.2"));
  ElasticityOptions bounds = ten_thousand();
  bounds.min_gpus = 2000;
  EXPECT_THAT(solve(bounds, 1, 1).problem, HasSubstr("max_gpus 1500"));
  EXPECT_THAT(solve(ten_thousand(), 64, 32).problem, HasSubstr("2 do; set it to 2"));
}

Plan plan_with(const std::string& block, int ranks) {
  const std::string text = R"({"model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2},
      "data": {"train": "a.txt", "sequence_length": 8}, )" +
                           block + "}";
  return make_plan(json::parse(text, "my.json"), ranks, "my.json");
}

TEST(Elasticity, GivesThePlanItsBatchAndAConfigurationThatGivesItAgain) {
  const std::string block =
      R"("elasticity": {"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [1, 2],
         "version": 0.1})";

  const Plan two = plan_with(block, 2);
  const Plan four = plan_with(block, 4);
  const Plan again = make_plan(two.resolved, 4, "my");

  EXPECT_EQ(two.global_batch, 8);
  EXPECT_EQ(two.micro_batch, 2);
  EXPECT_EQ(two.accumulation, 2);
  EXPECT_EQ(four.global_batch, 8);
  EXPECT_EQ(four.accumulation, 1);
  EXPECT_EQ(again.global_batch, 8);
  EXPECT_EQ(again.accumulation, 1);
}

}  // namespace
}  // namespace tessera::planner
