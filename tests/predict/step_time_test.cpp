// SPDX-License-Identifier: Apache-2.0
// The predicted time of steps whose weights rest on a disk.
#include "tessera/predict/step_time.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/planner/memory.h"
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

// A rank that holds a quarter of the experts updates all of them itself, because no other rank has
// the same; one that holds all of them updates a quarter.
TEST(StepTimeOfExperts, CountsTheRanksWithTheSameExperts) {
  const auto plan = [](int expert) {
    return plan_of_many(
        json::parse(R"({"model": {"family": "llama", "num_layers": 2, "hidden_size": 64,
          "num_heads": 4, "ffn_hidden_size": 96, "vocab_size": 256, "max_positions": 64,
          "moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 512}},
          "data": {"train": "a.txt", "sequence_length": 64}, "train_batch_size": 16,
          "train_micro_batch_size_per_gpu": 2, "trainer": {"max_steps": 1},
          "zero_optimization": {"stage": 1}, "parallel": {"expert": )" +
                        std::to_string(expert) + "}}",
                    "c.json"),
        4,
        "c.json");
  };
  DescribedMachine machine = find_machine("a100-80gb");
  machine.memory_efficiency = {};  // the time of an update is in proportion to its elements
  const StepTime whole = predict_step(plan(1), machine), divided = predict_step(plan(4), machine);

  EXPECT_NEAR(divided.update / whole.update, 1, 1e-6);
  EXPECT_LT(divided.traffic.at("gradients").bytes_in_host,
            0.5 * whole.traffic.at("gradients").bytes_in_host)
      << "most elements are those of experts, which only one rank has";
}

}  // namespace
}  // namespace tessera::predict
