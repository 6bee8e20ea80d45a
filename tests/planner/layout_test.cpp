// SPDX-License-Identifier: Apache-2.0
// The layouts to which configurations resolve.
#include "tessera/parallel/layout.h"

#include <string>

#include <gtest/gtest.h>

#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

struct Configured {
  std::string keys;
  int ranks;
};

Plan plan_of(const Configured& c) {
  return make_plan(json::parse(R"({"model": {"preset": "nano"}, "train_batch_size": 24,
                      "data": {"train": "a.txt", "sequence_length": 64})" +
                                   c.keys + "}",
                               "c.json"),
                   c.ranks,
                   "c.json");
}

std::string zero(const std::string& members) {
  return R"(, "zero_optimization": {)" + members + "}";
}

// Every number of a layout has a value that is not its default in one of them.
const Configured kConfigured[] = {
    {"", 1},
    {"", 4},
    {zero(R"("stage": 3)"), 4},
    {zero(R"("stage": 3, "mics_shard_size": 2, "stage3_model_persistence_threshold": 1000)"), 4},
    {zero(R"("stage": 3, "stage3_max_live_parameters": 1e6, "stage3_max_reuse_distance": 1e5)"), 2},
    {zero(R"("stage": 3, "zero_quantized_weights": true, "zero_quantized_gradients": true,
             "zeropp_loco_param": {"err_beta": 0.5})"),
     2},
    {zero(R"("stage": 3, "zero_quantized_nontrainable_weights": true)"), 2},
    {zero(R"("stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
             "stage3_param_persistence_threshold": "auto")"),
     4},
    {R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                   "bf16_optimizer_states": true})",
     2},
    {R"(, "fp16": {"enabled": true}, "communication_data_type": "bf16")", 2},
    {R"(, "gradient_reduction": "once", "sparse_gradients": true,
          "gradient_accumulation_steps": 3)",
     2},
    {R"(, "parallel": {"pipeline": {"size": 2, "schedule": "interleaved"}},
          "gradient_accumulation_steps": 4)",
     2},
    {R"(, "parallel": {"tensor": 2, "sequence": true, "context": {"size": 2, "mode": "ulysses"}})",
     4},
    {R"(, "parallel": {"pipeline": {"size": 2, "scatter_gather": true}, "tensor": 2})", 4},
    {R"(, "parallel": {"tensor": {"mode": "2d", "size": 4}})", 4},
    {R"(, "activation_checkpointing": {"granularity": "full", "every_n": 2})", 1},
    {R"(, "activation_checkpointing": {"granularity": "selective"},
          "run": {"threads_per_rank": 3})",
     1},
};

TEST(LayoutOfAPlan, IsTheSameFromItsResolvedConfiguration) {
  for (const Configured& c : kConfigured) {
    SCOPED_TRACE(c.keys);
    const Plan plan = plan_of(c);

    EXPECT_EQ(make_plan(plan.resolved(), c.ranks, "c.json").layout(), plan.layout());
    EXPECT_EQ(plan.mesh().size(), c.ranks);
  }
}

// A search may change the stage of a copy, and has all that follows from it.
TEST(LayoutOfAPlan, WithAnotherStageIsTheLayoutOfThatStage) {
  for (const int of_a_group : {1, 2, 4}) {
    const auto plan_at = [&](int stage) {
      const std::string groups = R"(, "mics_shard_size": )" + std::to_string(of_a_group);
      return plan_of(
          {zero(R"("stage": )" + std::to_string(stage) + (stage == 3 ? groups : "")), 4});
    };
    const Plan from = plan_at(3);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(of_a_group) + " " + std::to_string(stage));
      const Plan to = plan_at(stage);

      parallel::Layout changed = from.layout();
      changed.zero_stage = stage;
      changed.shard_ranks = to.layout().shard_ranks;

      EXPECT_EQ(changed, to.layout());
      EXPECT_EQ(changed.residency(), to.layout().residency());
    }
  }
}

}  // namespace
}  // namespace tessera::planner
