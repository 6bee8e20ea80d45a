// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's own figures: rows that its documentation and its users print.
#include "tessera/report/estimators.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::report {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Zero3Estimates, OfT0With3BillionAreDeepSpeeds) {
  const std::string text = estimate_text(3, {2'783'959'040, 65'798'144}, {.gpus_per_node = 2});

  EXPECT_THAT(
      text,
      StartsWith(
          "Estimated memory needed for params, optim states and gradients for a:\n"
          "HW: Setup with 1 node, 2 GPUs per node.\n"
          "SW: Model with 2783M total params, 65M largest layer params.\n"
          "  per CPU  |  per GPU |   Options\n"
          "   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"));
}

TEST(Zero3Estimates, OfInternlm2AreDeepSpeeds) {
  EXPECT_EQ(estimate_text(3, {1'889'110'016, 189'530'112}, {}),
            "Estimated memory needed for params, optim states and gradients for a:\n"
            "HW: Setup with 1 node, 1 GPU per node.\n"
            "SW: Model with 1889M total params, 189M largest layer params.\n"
            "  per CPU  |  per GPU |   Options\n"
            "   47.50GB |   0.71GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
            "   47.50GB |   0.71GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
            "   42.22GB |   4.22GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
            "   42.22GB |   4.22GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
            "    1.06GB |  32.37GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
            "   10.56GB |  32.37GB | offload_param=none, offload_optimizer=none, zero_init=0\n");
}

// Source: DeepSpeed's page about memory requirements, t5-3b without the model.
TEST(Zero3Estimates, OfT5AreThoseOfTheDocumentation) {
  EXPECT_THAT(
      estimate_text(3, {2'851'000'000, 32'000'000}, {.gpus_per_node = 8}),
      HasSubstr(
          "HW: Setup with 1 node, 8 GPUs per node.\n"
          "SW: Model with 2851M total params, 32M largest layer params.\n"
          "  per CPU  |  per GPU |   Options\n"
          "   71.69GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
          "  127.45GB |   0.12GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
          "   63.72GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
          "  127.45GB |   0.78GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
          "    1.43GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
          "  127.45GB |   6.09GB | offload_param=none, offload_optimizer=none, zero_init=0\n"));
}

TEST(Zero3Estimates, ShareTheHostsOfSeveralNodes) {
  const auto rows = estimate_zero3({1'000'000, 100'000}, {.gpus_per_node = 4, .nodes = 2});

  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].cpu_bytes, 13'500'000);           // 18 P / 2 x 1.5
  EXPECT_EQ(rows[1].cpu_bytes, 24'000'000);           // max(4 x 4, 18 / 2) P x 1.5
  EXPECT_EQ(rows[2].gpu_bytes, 400'000 + 250'000);    // 4 L + 2 P / 8
  EXPECT_EQ(rows[4].cpu_bytes, 2'400'000);            // 4 L x 4 x 1.5
  EXPECT_EQ(rows[5].gpu_bytes, 400'000 + 2'250'000);  // 4 L + 18 P / 8
}

// Source: the same page for the offloaded row and the host; the other is 2 P + 18 P / N since 2024.
TEST(Zero2Estimates, OfT5AreThoseOfTheDocumentation) {
  EXPECT_EQ(estimate_text(2, {2'851'000'000, 0}, {.gpus_per_node = 8}),
            "Estimated memory needed for params, optim states and gradients for a:\n"
            "HW: Setup with 1 node, 8 GPUs per node.\n"
            "SW: Model with 2851M total params.\n"
            "  per CPU  |  per GPU |   Options\n"
            "  127.45GB |   5.31GB | offload_optimizer=cpu\n"
            "  127.45GB |  11.28GB | offload_optimizer=none\n");
}

TEST(Zero2Estimates, NeedLittleHostMemoryForFewRanks) {
  const auto rows = estimate_zero2({1'000'000, 0}, {.gpus_per_node = 2, .nodes = 2});

  EXPECT_EQ(rows[0].cpu_bytes, 24'000'000);  // max(4 x 4, 16) P x 1.5
  EXPECT_EQ(rows[0].gpu_bytes, 2'000'000);
  EXPECT_EQ(rows[1].cpu_bytes, 12'000'000);  // 4 P x 2 x 1.5
  EXPECT_EQ(rows[1].gpu_bytes, 6'500'000);   // 2 P + 18 P / 4
}

TEST(ModelSizes, CountSharedParametersOnce) {
  const planner::Plan plan = planner::make_plan(
      json::parse(R"({"model": {"preset": "gpt2-small", "vocab_size": 50257, "max_positions": 1024},
                      "data": {"train": "a.txt"}, "train_batch_size": 1})",
                  "c.json"),
      1,
      "c.json");

  const ModelSize size = model_size(plan.model().resolved.model);

  EXPECT_EQ(size.total_params, 124'439'808);           // as Hugging Face counts gpt2
  EXPECT_EQ(size.largest_layer_params, 50'257 * 768);  // the table of tokens
}

}  // namespace
}  // namespace tessera::report
