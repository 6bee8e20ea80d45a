// SPDX-License-Identifier: Apache-2.0
// The predicted time of steps whose weights rest on a disk, and of those with divided experts.
#include "tessera/predict/step_time.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/nn/block.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/predict/described_machine.h"
#include "tessera/predict/many_ranks.h"

namespace tessera::predict {
namespace {

planner::Plan plan_on_disk(const std::string& keys) {
  const std::string text = R"({"model": {"preset": "nano"}, "data": {"train": "a.txt",
      "sequence_length": 128}, "train_batch_size": 4, "bf16": {"enabled": true},
      "aio": {"block_size": 4096}, "trainer": {"max_steps": 1},
      "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0)" +
                           keys + "}}";
  return plan_of_many(json::parse(text, "c.json"), 1, "c.json");
}

const std::string kWeights = R"(, "offload_param": {"device": "nvme", "nvme_path": "/tmp")";

StepTime time_of(const planner::Plan& plan, double bytes_per_s) {
  DescribedMachine machine = find_machine("a100-80gb");
  machine.rates.tiers["disk"] = {{0, bytes_per_s}, {0, bytes_per_s}};
  return predict_step(plan, machine);
}

TEST(StepTimeWithADisk, IsTheTimeInMemoryIfTheDiskIsFast) {
  const double memory = time_of(plan_on_disk(""), 1).seconds;

  EXPECT_DOUBLE_EQ(time_of(plan_on_disk(kWeights + "}"), /*unlimited*/ 0).seconds, memory);
  EXPECT_DOUBLE_EQ(time_of(plan_on_disk(kWeights + R"(, "max_in_cpu": 1e9})"), 1).seconds, memory);
}

// A disk so slow that nothing else counts: what the blocks read, and what the update reads and
// writes at a time. Buffers have some padding, and a first gather of a step is kept.
TEST(StepTimeWithADisk, IsTheTravelIfTheDiskIsSlow) {
  constexpr double kRate = 1e3, kTolerance = 0.1;
  for (const bool states : {false, true}) {
    const planner::Plan plan = plan_on_disk(
        kWeights + "}" +
        (states ? R"(, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"})" : ""));
    const double seconds = static_cast<double>(planner::offload_bytes(plan).read) / kRate;

    EXPECT_NEAR(time_of(plan, kRate).seconds / seconds, 1, kTolerance) << states;
  }
  // Gradients are written during the backward pass, in which weights are read.
  const planner::Plan plan = plan_on_disk(kWeights + R"(}, "offload_optimizer":
      {"device": "nvme", "nvme_path": "/tmp", "gradients": true})");
  const planner::OffloadBytes disk = planner::offload_bytes(plan);
  ASSERT_GT(disk.gradients, 0);
  const double seconds = static_cast<double>(disk.read + disk.gradients) / kRate;

  EXPECT_NEAR(time_of(plan, kRate).seconds / seconds, 1, kTolerance);
}

TEST(StepTimeWithADisk, NeedsItsRates) {
  try {
    (void)predict_step(plan_on_disk(kWeights + "}"), find_machine("a100-80gb"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::HasSubstr("tiers.disk"));
    EXPECT_THAT(error.text(), testing::HasSubstr("weights rest on a disk"));
  }
}

// Of eight ranks that each have other experts, none sends gradients of experts, and each updates as
// many weights as before.
TEST(StepTimeOfExperts, HasTransfersAmongTheRanksWithTheSameExperts) {
  const auto plan = [](int experts) {
    return plan_of_many(json::parse(R"({"model": {"family": "mixtral", "preset": "mixtral-nano"},
        "data": {"train": "a.txt", "sequence_length": 128}, "train_batch_size": 8,
        "zero_optimization": {"stage": 1}, "trainer": {"max_steps": 1},
        "parallel": {"expert": )" + std::to_string(experts) +
                                        "}}",
                                    "c.json"),
                        8,
                        "c.json");
  };
  double all = 0, of_experts = 0;
  const planner::Plan whole = plan(1), divided = plan(8);
  for (const auto& info : nn::parameters_of(whole.model().resolved.model)) {
    all += static_cast<double>(info->numel());
    if (info->stacked()) of_experts += static_cast<double>(info->numel());
  }
  ASSERT_GT(of_experts, 0.3 * all);
  const DescribedMachine machine = find_machine("a100-80gb");

  const StepTime one = predict_step(whole, machine), eight = predict_step(divided, machine);

  const auto sent = [](const StepTime& time) {
    const Transfer& gradients = time.traffic.at("gradients");
    return gradients.bytes_in_host + gradients.bytes_between;
  };
  EXPECT_NEAR(sent(eight) / sent(one), (all - of_experts) / all, 1e-6);
  EXPECT_NEAR(eight.update / one.update, 1.0, 1e-3);
}

}  // namespace
}  // namespace tessera::predict
