// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/values.h"

#include <gtest/gtest.h>

#include "tessera/data/token_dataset.h"
#include "tessera/models/family.h"
#include "tessera/planner/make_plan.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/tasks/task.h"
#include "tessera/text/tokenizer.h"

namespace tessera::planner {
namespace {

// Sizes that differ, so that one cannot be taken for another.
TEST(Values, AreThoseOfTheConfiguration) {
  const Plan plan = make_plan(json::parse(R"({
      "model": {"family": "gpt2", "num_layers": 6, "hidden_size": 64, "num_heads": 4},
      "data": {"train": "a.txt", "sequence_length": 48, "validation_fraction": 0.25},
      "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5,
      "bf16": {"enabled": true}, "zero_optimization": {"stage": 3},
      "parallel": {"pipeline": {"size": 2, "schedule": "gpipe"}, "context": {"size": 2}},
      "trainer": {"seed": 77}, "eval": {"every": 9, "top_k": 11},
      "run": {"threads_per_rank": 13}})",
                                          "c.json"),
                              16,
                              "c.json");

  EXPECT_EQ(task_of(plan)->objective(), "causal_lm");
  EXPECT_EQ(tokenizer_of(plan)->size(), 256);
  EXPECT_EQ(data_options_of(plan).validation_fraction, 0.25);
  EXPECT_EQ(sequence_length_of(plan), 48);
  EXPECT_EQ(model_of(plan).num_layers, 6);
  EXPECT_EQ(global_batch_of(plan), 3 * 5 * 4);
  EXPECT_EQ(seed_of(plan), 77);
  EXPECT_EQ(eval_options_of(plan).top_k, 11);
  EXPECT_EQ(micro_batch_of(plan), 3);
  EXPECT_EQ(accumulation_of(plan), 5);
  EXPECT_EQ(threads_of(plan), 13);
  EXPECT_EQ(data_ranks_of(plan), 4);
  EXPECT_EQ(zero_stage_of(plan), 3);
  EXPECT_EQ(stages_of(plan), 2);
  EXPECT_EQ(schedule_of(plan), "gpipe");
  EXPECT_EQ(working_of(plan), DType::BF16);
  EXPECT_TRUE(runs_together(plan));
  EXPECT_EQ(context_ranks_of(plan), 2);
}

}  // namespace
}  // namespace tessera::planner
