// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's choice of a batch. The expected numbers are those of its own tests and documentation.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/elastic_batch.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

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
parallel::ElasticityOptions ten_thousand() {
  parallel::ElasticityOptions options;
  options.enabled = true;
  options.max_train_batch_size = 10000;
  options.micro_batch_sizes = list({8, 12, 16, 17});
  options.min_gpus = 32;
  options.max_gpus = 1500;
  options.version = 0.1;
  return options;
}

struct Solved {
  std::optional<parallel::ElasticBatch> batch;
  std::string problem;
};
Solved solve(const parallel::ElasticityOptions& options,
             std::int64_t ranks,
             std::int64_t data_ranks) {
  config::Problems problems;
  Solved out;
  out.batch = parallel::elastic_batch(options, ranks, data_ranks, problems, {});
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
  parallel::ElasticityOptions options;
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

TEST(Elasticity, HasTheDefaultsOfDeepSpeed) {
  parallel::ElasticityOptions options;
  options.enabled = true;
  options.version = 0.1;

  // 2000 sequences in micro-batches of 2, 4 and 6: 32 numbers of ranks share 1680.
  const Solved solved = solve(options, 7, 7);

  ASSERT_TRUE(solved.batch) << solved.problem;
  EXPECT_EQ(solved.batch->global, 1680);
  EXPECT_EQ(solved.batch->data_ranks.size(), 32U);
  EXPECT_EQ(solved.batch->micro, 6);
}

TEST(Elasticity, TakesTheLargestMicroBatchThatFitsTheShare) {
  parallel::ElasticityOptions options = ten_thousand();
  options.min_gpus = 1;
  options.max_train_batch_size = 32;
  options.micro_batch_sizes = list({1, 2, 3, 7});

  // Their least common multiple, 42, is a candidate although it is more than 32, as in DeepSpeed.
  const Solved solved = solve(options, 7, 7);

  ASSERT_TRUE(solved.batch) << solved.problem;
  EXPECT_EQ(solved.batch->global, 42);
  EXPECT_EQ(solved.batch->micro, 3);
}

TEST(Elasticity, PrefersTheLargerOrTheSmallerOfTwoBatchesThatEquallyManyShare) {
  parallel::ElasticityOptions options = ten_thousand();
  options.min_gpus = 1;
  options.micro_batch_sizes = list({2, 3});
  options.max_train_batch_size = 20;

  const Solved larger = solve(options, 3, 3);
  options.prefer_larger_batch = false;
  const Solved smaller = solve(options, 3, 3);

  ASSERT_TRUE(larger.batch && smaller.batch);
  EXPECT_EQ(larger.batch->global, 18);
  EXPECT_THAT(larger.batch->data_ranks, ElementsAre(1, 2, 3, 6, 9));
  EXPECT_EQ(smaller.batch->global, 12);
  EXPECT_THAT(smaller.batch->data_ranks, ElementsAre(1, 2, 3, 4, 6));
}

TEST(Elasticity, CountsOnlyNumbersOfRanksWithinItsBounds) {
  parallel::ElasticityOptions options = ten_thousand();
  options.min_gpus = 64;
  options.max_gpus = 200;

  const Solved solved = solve(options, 64, 64);

  ASSERT_TRUE(solved.batch) << solved.problem;
  EXPECT_EQ(solved.batch->global, 9792);
  EXPECT_THAT(solved.batch->data_ranks, ElementsAre(64, 68, 72, 96, 102, 136, 144, 153, 192));
  EXPECT_FALSE(solve(options, 48, 48).batch);
  EXPECT_FALSE(solve(options, 204, 204).batch);
}

/// Expected numbers: those of DeepSpeed's own functions (_get_compatible_gpus_v02) for these
/// options.
TEST(Elasticity, CountsModelsInVersionTwo) {
  parallel::ElasticityOptions options;
  options.enabled = true;
  options.num_gpus_per_node = 8;
  options.model_parallel_size = 4;

  // Two models a node. 24 ranks are six of them, which share 1920; 88 ranks are 22, which do not.
  const Solved fits = solve(options, 24, 6), alone = solve(options, 88, 22);
  options.prefer_larger_batch = false;
  const Solved small = solve(options, 24, 6), small_alone = solve(options, 88, 22);

  ASSERT_TRUE(fits.batch && alone.batch && small.batch && small_alone.batch);
  EXPECT_EQ(fits.batch->global, 1920);
  EXPECT_EQ(fits.batch->data_ranks.size(), 24U);
  EXPECT_EQ(fits.batch->micro, 4);
  EXPECT_EQ(alone.batch->global, 1980);
  EXPECT_THAT(alone.batch->data_ranks, ElementsAre(22));
  EXPECT_EQ(alone.batch->micro, 2);
  EXPECT_EQ(small.batch->global, 1440);
  EXPECT_EQ(small.batch->micro, 2);
  EXPECT_EQ(small_alone.batch->global, 1936);
  EXPECT_EQ(small_alone.batch->micro, 2);
}

TEST(Elasticity, RefusesWhatContradictsItself) {
  parallel::ElasticityOptions sizes = ten_thousand();
  sizes.micro_batch_sizes = list({0});
  EXPECT_THAT(solve(sizes, 1, 1).problem, HasSubstr("[0] is not a list"));
  parallel::ElasticityOptions large = ten_thousand();
  large.max_train_batch_size = 16;
  EXPECT_THAT(solve(large, 1, 1).problem, HasSubstr("17 is larger"));
  parallel::ElasticityOptions version = ten_thousand();
  version.version = 0.3;
  EXPECT_THAT(solve(version, 1, 1).problem, HasSubstr("0.1 or 0.2"));
  parallel::ElasticityOptions bounds = ten_thousand();
  bounds.min_gpus = 2000;
  EXPECT_THAT(solve(bounds, 1, 1).problem, HasSubstr("max_gpus 1500"));
  EXPECT_THAT(solve(ten_thousand(), 64, 32).problem, HasSubstr("2 do; set it to 2"));
  parallel::ElasticityOptions models = ten_thousand();
  models.model_parallel_size = 4;
  EXPECT_THAT(solve(models, 64, 16).problem, HasSubstr("set elasticity.version to 0.2"));
  models.version = 0.2;
  models.num_gpus_per_node = 6;
  EXPECT_THAT(solve(models, 64, 16).problem, HasSubstr("6 is not a multiple"));
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
  const Plan again = make_plan(two.resolved(), 4, "my");

  EXPECT_EQ(two.recipe().global_batch, 8);
  EXPECT_EQ(two.layout().micro_batch, 2);
  EXPECT_EQ(two.layout().accumulation, 2);
  EXPECT_EQ(four.recipe().global_batch, 8);
  EXPECT_EQ(four.layout().accumulation, 1);
  EXPECT_EQ(again.recipe().global_batch, 8);
  EXPECT_EQ(again.layout().accumulation, 1);
}

TEST(Elasticity, ReplacesTheBatchKeysOnlyIfEnabled) {
  const std::string keys = R"("train_batch_size": 6, "elasticity": {"enabled": true,
      "max_train_batch_size": 8, "micro_batch_sizes": [1, 2], "version": 0.1)";

  EXPECT_THAT([&] { plan_with(keys + "}", 2); },
              testing::ThrowsMessage<Error>(HasSubstr("elasticity chooses it as well")));
  EXPECT_EQ(
      plan_with(keys + R"(, "ignore_non_elastic_batch_info": true})", 2).recipe().global_batch, 8);
  EXPECT_EQ(plan_with(R"("train_batch_size": 6, "elasticity": {"enabled": false,
      "max_train_batch_size": 8})",
                      2)
                .recipe()
                .global_batch,
            6);
}

}  // namespace
}  // namespace tessera::planner
