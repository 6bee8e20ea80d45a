// SPDX-License-Identifier: Apache-2.0
// What experts require of a configuration, how they are spread over ranks, and their memory.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/report/first_table.h"

namespace tessera::planner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// A small decoder with eight experts of which a token uses two. `moe`, `members`: members of
/// model.moe and of the whole, each behind a comma, that are added or replace these.
json::Value sparse(const std::string& moe, const std::string& members) {
  json::Value out = json::parse(R"({"model": {"family": "llama", "num_layers": 2,
             "hidden_size": 64, "num_heads": 4, "ffn_hidden_size": 96, "max_positions": 64,
             "moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 48}},
             "data": {"train": "a.txt", "sequence_length": 64}, "train_batch_size": 16,
             "train_micro_batch_size_per_gpu": 2, "eval": {"every": 0}})",
                                "c.json");
  const auto set = [](json::Value& object, const std::string& more) {
    const json::Value parsed =
        json::parse("{" + (more.empty() ? more : more.substr(1)) + "}", "c.json");
    for (const auto& [key, value] : parsed.members())
      object[key] = value;
  };
  set(out["model"]["moe"], moe);
  set(out, members);
  return out;
}

Plan plan_of(const std::string& moe, const std::string& members, int ranks) {
  return make_plan(sparse(moe, members), ranks, "c.json");
}

std::string problems_of(const std::string& moe, const std::string& members, int ranks) {
  try {
    (void)plan_of(moe, members, ranks);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(ExpertPlans, SpreadExpertsOverTheFirstRanksThatFit) {
  struct Case {
    std::string parallel;
    int ranks, data;  // of these, along the data-parallel ranks
    bool context, tensor;
  };
  for (const Case& one :
       std::vector<Case>{{R"({"expert": 2})", 4, 2, false, false},
                         {R"({"expert": 2, "context": 2})", 4, 2, false, false},
                         {R"({"expert": 4, "context": 2})", 4, 2, true, false},
                         {R"({"expert": 2, "context": 2})", 2, 1, true, false},
                         {R"({"expert": 4, "tensor": 2})", 4, 2, false, true},
                         {R"({"expert": 4, "context": 2, "tensor": 2})", 4, 1, true, true}}) {
    SCOPED_TRACE(one.parallel);
    const Plan plan = plan_of("", R"(, "parallel": )" + one.parallel, one.ranks);
    EXPECT_EQ(plan.layout().expert_ranks, one.data);
    EXPECT_EQ(plan.layout().experts_over_context, one.context);
    EXPECT_EQ(plan.layout().experts_over_tensor, one.tensor);
  }
  EXPECT_THAT(
      report::first_table(
          PlanWithData(plan_of("", R"(, "parallel": {"expert": 4, "context": 2})", 4), {}), {}),
      Contains(HasSubstr("expert parallel 4 (with context)")));
}

TEST(ExpertPlans, NameWhatDoesNotFit) {
  struct Bad {
    std::string moe, members;
    int ranks;
    std::vector<std::string> said;
  };
  const std::vector<Bad> table = {
      {R"(, "top_k": 9)", "", 1, {"model.moe.top_k", "uses 9 experts, and may choose among 8"}},
      {R"(, "top_k": 4, "router": {"groups": 4, "top_groups": 1})",
       "",
       1,
       {"model.moe.top_k", "may choose among 2"}},
      {R"(, "router": {"groups": 3})", "", 1, {"3 groups do not divide 8 experts"}},
      {R"(, "capacity": 0.001, "min_capacity": 0)",
       "",
       1,
       {"model.moe.capacity", "would accept 0.032 of a token", "min_capacity"}},
      {"", R"(, "parallel": {"expert": 3})", 4, {"parallel.expert", "groups of 3", "2 or 4"}},
      {"",
       R"(, "parallel": {"expert": 3, "context": 2})",
       4,
       {"groups of 3", "with parallel.context", "2 or 4"}},
      {"", R"(, "parallel": {"expert": 16})", 16, {"16 ranks cannot share 8 experts", "at most 8"}},
      {"",
       R"(, "parallel": {"expert_tensor": 2})",
       2,
       {"parallel.expert_tensor", "1 or parallel.tensor.size, which is 1"}},
      {"",
       R"(, "parallel": {"expert_tensor": 3, "tensor": 2})",
       2,
       {"parallel.expert_tensor", "set it to 1 or 2"}},
      {R"(, "ffn_hidden_size": 1)",
       R"(, "parallel": {"expert_tensor": 2, "tensor": 2})",
       2,
       {"2 ranks cannot split an expert of width 1"}},
      {"",
       R"(, "parallel": {"expert_tensor": 2, "tensor": 2},
            "adapter": {"type": "lora", "targets": ["up_proj"]})",
       2,
       {"parallel.expert_tensor", "cannot have adapters"}},
      {"",
       R"(, "parallel": {"tensor": 2, "sequence": true})",
       2,
       {"parallel.sequence", "whole tokens"}},
      {R"(, "capacity": 1.0)",
       R"(, "parallel": {"context": 2})",
       2,
       {"model.moe.capacity", "counts whole micro-batches"}}};
  for (const Bad& bad : table) {
    const std::string text = problems_of(bad.moe, bad.members, bad.ranks);
    for (const std::string& part : bad.said)
      EXPECT_THAT(text, HasSubstr(part)) << bad.moe << bad.members;
  }
}

TEST(ExpertPlans, DivideExpertsInAttentionOverTensorParallelRanksToo) {
  const auto plan = [](int ranks) {
    return make_plan(json::parse(R"({"model": {"family": "jetmoe", "num_layers": 2,
             "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 24,
             "max_positions": 64, "moe": {"num_experts": 4}},
             "data": {"train": "a.txt", "sequence_length": 64}, "train_batch_size": 16,
             "train_micro_batch_size_per_gpu": 2, "eval": {"every": 0},
             "parallel": {"expert": 2, "tensor": 2}})",
                                 "c.json"),
                     ranks,
                     "c.json");
  };
  EXPECT_TRUE(plan(2).layout().experts_over_tensor);
  EXPECT_FALSE(plan(4).layout().experts_over_tensor) << "two data-parallel ranks divide them";
}

// Of many layers a few are measured; the sums of a balance term over all of them end in the last
// one.
TEST(ExpertPlans, PredictTheMemoryOfManyLayersWithOneBalanceTerm) {
  const auto activations = [](int layers) {
    return estimate_memory(
               make_plan(json::parse(R"({"model": {"family": "qwen3_moe", "hidden_size": 32,
             "num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "ffn_hidden_size": 48,
             "max_positions": 64, "num_layers": )" +
                                         std::to_string(layers) +
                                         R"(, "moe": {"num_experts": 8, "top_k": 2,
             "ffn_hidden_size": 16, "losses": {"balance": 0.01, "pooled_layers": true}}},
             "data": {"train": "a.txt", "sequence_length": 64},
             "train_micro_batch_size_per_gpu": 4, "eval": {"every": 0}})",
                                     "c.json"),
                         1,
                         "c.json"))
        .activations;
  };
  const std::int64_t three = activations(3), six = activations(6), nine = activations(9);

  EXPECT_GT(three, 0);
  EXPECT_NEAR(static_cast<double>(nine - six), static_cast<double>(six - three), 4096);
}

// An owner keeps the rows of one round, half as many again as with equal loads, and one unit more
// if that is larger; weights and states of experts are divided.
TEST(ExpertPlans, PredictTheMemoryOfTheFullestOwner) {
  const auto need = [](const std::string& parallel, int ranks) {
    return estimate_memory(plan_of("", R"(, "zero_optimization": {"stage": 0})" + parallel, ranks));
  };
  const MemoryEstimate whole = need("", 4), four = need(R"(, "parallel": {"expert": 4})", 4);

  EXPECT_LT(four.parameters, whole.parameters);
  EXPECT_LT(four.optimizer, whole.optimizer);
  EXPECT_GT(four.activations, whole.activations) << "room for uneven loads";
  EXPECT_LT(four.activations, 3 * whole.activations) << "and a bound of it";
}

}  // namespace
}  // namespace tessera::planner
