// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The search against an exhaustive prediction, and its limits.
#include "tessera/tune/search.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "tune/toy.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/config/overrides.h"
#include "tessera/parallel/layout.h"

namespace tessera::tune {
namespace {

using ::testing::HasSubstr;

predict::DescribedMachine h100() {
  return predict::find_machine("h100");
}

TEST(Search, FindsTheBestOfAnExhaustivePrediction) {
  for (const int ranks : {2, 4}) {
    Space space(test::gpt2(6, 1024, 16, 512, 8), ranks, "toy.json", h100());
    SearchOptions few{.most = 3}, all{.most = 100'000, .most_predicted = 100'000};

    const Found found = search(space, few), whole = search(space, all);

    ASSERT_EQ(found.best.size(), 3U);
    EXPECT_GT(whole.best.size(), 20U);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_DOUBLE_EQ(found.best[i].value, whole.best[i].value) << i;
    EXPECT_LT(found.predicted, whole.predicted);
  }
}

TEST(Search, IsDeterministicAndAccountsForEveryChoice) {
  Space one(test::gpt2(6, 1024, 16, 512, 32), 8, "toy.json", h100());
  Space two(test::gpt2(6, 1024, 16, 512, 32), 8, "toy.json", h100());

  const Found a = search(one, {}), b = search(two, {});

  ASSERT_EQ(a.best.size(), b.best.size());
  for (std::size_t i = 0; i < a.best.size(); ++i)
    EXPECT_EQ(a.best[i].choice, b.best[i].choice);
  std::size_t others = 0;
  for (const NotTried& why : a.not_tried)
    others += why.count;
  EXPECT_GE(others + a.best.size(), a.choices);
}

TEST(Search, EveryCandidateKeepsTheGlobalBatchAndPassesAllRules) {
  Space space(test::gpt2(6, 1024, 16, 512, 32), 8, "toy.json", h100());

  for (const Candidate& one : search(space, {}).best) {
    EXPECT_EQ(one.choice.micro * one.choice.accumulation * one.choice.data(), 32);
    const planner::Plan plan = space.checked_plan(one.choice);
    Choice made = choice_of(plan);
    made.threads = one.choice.threads;  // of a device: they do not matter
    EXPECT_EQ(made, one.choice);
    EXPECT_NEAR(predict::predict_step(plan, space.machine()).seconds,
                one.time.seconds,
                1e-9 * one.time.seconds)
        << "the plan of a training is the plan of the search: " << text_of(one.choice);
  }
}

TEST(Search, KeepsFixedKeys) {
  json::Value source = test::gpt2(6, 1024, 16, 512, 32);
  source["zero_optimization"]["stage"] = json::Value::integer(2);
  source["parallel"]["tensor"]["size"] = json::Value::integer(2);
  Space space(source, 8, "toy.json", h100());
  SearchOptions options;
  options.fixed = fixed_of({"zero_optimization.stage", "parallel.tensor.size"});

  for (const Candidate& one : search(space, options).best) {
    EXPECT_EQ(one.choice.zero, 2);
    EXPECT_EQ(one.choice.tensor, 2);
  }
  EXPECT_THROW((void)fixed_of({"optimizer.lr"}), Error);
}

TEST(Search, DividesExpertsAmongDataParallelRanks) {
  json::Value source = test::gpt2(4, 512, 8, 512, 16);
  source["model"]["family"] = json::Value::string("mixtral");
  source["model"]["moe"]["num_experts"] = json::Value::integer(4);
  Space space(source, 8, "toy.json", h100());
  EXPECT_EQ(space.experts(), 4);
  SearchOptions all{.most = 100'000, .most_predicted = 2000};
  all.fixed = fixed_of({"parallel.tensor", "parallel.context", "parallel.pipeline.size"});
  std::set<int> sizes;
  for (const Candidate& one : search(space, all).best) {
    if (!sizes.insert(one.choice.expert).second) continue;
    EXPECT_NEAR(predict::predict_step(space.plan(one.choice), space.machine()).seconds,
                one.time.seconds,
                1e-9 * one.time.seconds)
        << "nothing is kept from layouts with other experts: " << text_of(one.choice);
  }

  EXPECT_EQ(sizes, (std::set<int>{1, 2, 4})) << "8 ranks cannot share 4 experts";
  all.fixed.expert = true;
  for (const Candidate& one : search(space, all).best)
    EXPECT_EQ(one.choice.expert, 1);
}

TEST(Search, KeepsExpertsOverContextAndTensorRanksAsTheConfigurationHasThem) {
  json::Value source = test::gpt2(4, 512, 8, 512, 16);
  source["model"]["family"] = json::Value::string("mixtral");
  source["model"]["moe"]["num_experts"] = json::Value::integer(8);
  config::set_key(source, "parallel.tensor.size", json::Value::integer(2), "test");
  config::set_key(source, "parallel.expert", json::Value::integer(8), "test");
  Space space(source, 8, "toy.json", h100());

  EXPECT_EQ(space.own().expert, 8) << "4 data-parallel ranks x 2 of tensor parallelism";
  EXPECT_EQ(space.own().data_experts(), 4);
  EXPECT_EQ(space.plan(space.own()).layout().expert_fold().ep,
            space.checked_plan(space.own()).layout().expert_fold().ep);
  EXPECT_TRUE(space.checked_plan(space.own()).layout().experts_over_tensor);
  SearchOptions options{.most = 1000};
  options.fixed = fixed_of(
      {"parallel.expert", "parallel.tensor", "parallel.context", "parallel.pipeline.size"});
  const auto found = search(space, options);
  ASSERT_FALSE(found.best.empty());
  for (const Candidate& one : found.best) {
    EXPECT_EQ(one.choice.expert, 8);
    EXPECT_NO_THROW((void)space.checked_plan(one.choice)) << text_of(one.choice);
  }

  config::set_key(source, "parallel.expert", json::Value::integer(2), "test");
  config::set_key(source, "parallel.expert_tensor", json::Value::integer(2), "test");
  Space split(source, 8, "toy.json", h100());
  EXPECT_TRUE(split.own().splits_experts);
  SearchOptions all{.most = 100'000, .most_predicted = 2000};
  all.fixed = fixed_of({"parallel.context", "parallel.pipeline.size"});
  std::set<int> tensors;
  for (const Candidate& one : search(split, all).best) {
    if (!tensors.insert(one.choice.tensor).second) continue;
    EXPECT_EQ(split.checked_plan(one.choice).layout().splits_experts, one.choice.tensor > 1)
        << text_of(one.choice);
  }
  EXPECT_GT(tensors.size(), 1u);
}

TEST(Search, PutsTheOptimizerOnADiskOnlyWhereAFolderIsGiven) {
  predict::DescribedMachine machine = h100();
  machine.rates.tiers["disk"] = {{0, 5e9}, {0, 5e9}};
  // Masters and states of 2048 channels are larger than the buffers of those on a disk.
  json::Value source = test::gpt2(4, 2048, 8, 512, 8);
  Space without(source, 2, "toy.json", machine);
  for (const Candidate& one : search(without, {}).best)
    EXPECT_EQ(one.choice.offload, Offload::AsGiven);
  source["zero_optimization"]["offload_optimizer"]["nvme_path"] = json::Value::string("/tmp");
  Space space(source, 2, "toy.json", machine);
  EXPECT_EQ(space.own().offload, Offload::None);

  const Candidate small = search(space, {.metric = Metric::Memory, .most = 1}).best[0];
  const Candidate fast = search(space, {.most = 1}).best[0];

  EXPECT_EQ(small.choice.offload, Offload::Optimizer) << text_of(small.choice);
  EXPECT_EQ(fast.choice.offload, Offload::None) << text_of(fast.choice);
  const planner::Plan plan = space.checked_plan(small.choice);
  EXPECT_TRUE(plan.layout().offload.has_value());
  EXPECT_EQ(planner::estimate_memory(plan).total(), small.memory.total())
      << "the plan of a training is the plan of the search";

  // A configuration whose optimizer rests there now.
  source["zero_optimization"]["stage"] = json::Value::integer(2);
  source["zero_optimization"]["offload_optimizer"]["device"] = json::Value::string("nvme");
  Space used(source, 2, "toy.json", machine);
  EXPECT_EQ(used.own().offload, Offload::Optimizer);
  EXPECT_EQ(search(used, {.most = 1}).best.size(), 1U);
}

TEST(Search, RefusesWhatDoesNotFitWithTheNearestLayout) {
  predict::DescribedMachine small = h100();
  small.memory_bytes = 2e8;
  Space space(test::gpt2(6, 1024, 16, 512, 32), 2, "toy.json", small);
  try {
    (void)search(space, {});
    FAIL() << "200 MB are too few";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("fit"));
  }
}

TEST(Search, MetricsOrderByWhatTheyName) {
  Space space(test::gpt2(6, 1024, 16, 512, 32), 8, "toy.json", h100());
  const Candidate fast = search(space, {.most = 1}).best[0];
  const Candidate small = search(space, {.metric = Metric::Memory, .most = 1}).best[0];

  EXPECT_LE(fast.time.seconds, small.time.seconds);
  EXPECT_LE(small.memory.total(), fast.memory.total());
  EXPECT_THROW((void)metric_of("speed"), Error);
}

TEST(Search, Of4096RanksAnd96LayersIsShort) {
  const double begin = now_s();
  Space space(test::gpt2(96, 12288, 96, 2048, 4096), 4096, "toy.json", h100());

  const Found found = search(space, {});

  std::printf("4096 ranks, 96 layers: %zu layouts, %zu simulated, %.2f s; best %s: %.2f s\n",
              found.choices,
              found.predicted,
              now_s() - begin,
              text_of(found.best[0].choice).c_str(),
              found.best[0].time.seconds);
  EXPECT_GT(found.choices, 1000U);
  EXPECT_LT(found.predicted, found.choices / 5);
}

TEST(Choice, ComesBackFromJsonAndFromAPlan) {
  Choice choice;
  choice.ranks = 16;
  choice.tensor = 2;
  choice.sequence = true;
  choice.pipeline = 2;
  choice.schedule = "interleaved";
  choice.chunks = 2;
  choice.zero = 1;
  choice.micro = 2;
  choice.accumulation = 4;
  choice.recompute = Recompute::Selective;
  choice.threads = 1;
  choice.expert = 2;
  choice.offload = Offload::Weights;
  EXPECT_EQ(choice_from_json(json::parse(to_json(choice).dump(), "t")), choice);
  EXPECT_THROW((void)choice_from_json(json::parse("{}", "t")), Error);
  EXPECT_TRUE(differences(choice, choice).empty());
  Choice other = choice;
  other.zero = 3;
  EXPECT_EQ(differences(choice, other), std::vector<std::string>{"zero_optimization.stage 1 -> 3"});
}

}  // namespace
}  // namespace tessera::tune
