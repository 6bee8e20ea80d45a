// SPDX-License-Identifier: Apache-2.0
// What a plan for a GPU refuses, on hosts with and without one.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/offload_ladder.h"
#include "tessera/planner/plan.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string problems_of(const std::string& device, const std::string& keys) {
  try {
    (void)make_plan(json::parse(R"({"data": {"train": "a.txt"}, "train_batch_size": 8,
                                    "run": {"device": ")" +
                                    device + "\"}" + keys + "}",
                                "c.json"),
                    2,
                    "c.json");
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(DeviceOfAPlan, RefusesWhatIsBuiltForTheHostOnly) {
  struct Case {
    const char *keys, *key;
  };
  for (const auto& [keys, key] :
       {Case{R"(, "zero_optimization": {"stage": 3, "zero_quantized_weights": true})",
             "zero_optimization.zero_quantized_weights"},
        Case{R"(, "zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": true})",
             "zero_optimization.zero_quantized_nontrainable_weights"},
        Case{R"(, "communication_data_type": "int8")", "communication_data_type"}}) {
    EXPECT_THAT(problems_of("cuda", keys),
                AllOf(HasSubstr(key), HasSubstr("not built yet on the device \"cuda\"")));
    EXPECT_EQ(problems_of("cpu", keys), "") << keys;
  }
}

TEST(DeviceOfAPlan, AllowsWhatRunsOnAnyDevice) {
  for (const char* const keys :
       {"",
        R"(, "optimizer": {"type": "Muon"}, "trainer": {"ema": {"decay": 0.9}})",
        R"(, "optimizer": {"type": "AdamW8bit"})",
        R"(, "adapter": {"type": "lora", "quantize_base": "nf4"})",
        R"(, "optimizer": {"type": "Adafactor"})",
        R"(, "optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 2}})",
        R"(, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})",
        R"(, "zero_optimization": {"stage": 2, "offload_optimizer":
               {"device": "nvme", "nvme_path": "/tmp"}})",
        R"(, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})",
        R"(, "zero_optimization": {"stage": 3, "offload_param":
               {"device": "nvme", "nvme_path": "/tmp"}})",
        R"(, "activation_checkpointing": {"granularity": "full", "cpu_checkpointing": true})",
        R"(, "activation_checkpointing": {"granularity": "full", "offload": {"device": "cpu"}})",
        R"(, "parallel": {"tensor": 2})",
        R"(, "parallel": {"context": 2})"})
    EXPECT_EQ(problems_of("cuda:0,1", keys), "") << keys;
}

// Adafactor and 1-bit rules update on the host, and so does every rule on request.
TEST(DeviceOfAPlan, NeedsFp32MastersForUpdatesOnTheHost) {
  const std::string pure = R"(, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})";
  EXPECT_THAT(
      problems_of(
          "cuda",
          pure + R"(, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}})"),
      AllOf(HasSubstr("zero_optimization.offload_optimizer.device"), HasSubstr("fp32 masters")));
  EXPECT_THAT(problems_of("cuda", pure + R"(, "optimizer": {"type": "Adafactor"})"),
              AllOf(HasSubstr("optimizer.type"), HasSubstr("fp32 masters")));
  EXPECT_EQ(problems_of("cpu", pure + R"(, "optimizer": {"type": "Adafactor"})"), "");
}

TEST(DeviceOfAPlan, RefusesWhatDoesNotGoWithTheMemoryOfTheHost) {
  struct Case {
    const char *keys, *key, *why;
  };
  for (const auto& [keys, key, why] :
       {Case{R"(, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
                "bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
             "zero_optimization.offload_param.device",
             "needs fp32 masters"},
        Case{R"(, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2,
                "offload_param": {"device": "cpu"}})",
             "zero_optimization.offload_param.device",
             "\"cpu\" does not go with zero_hpz_partition_size"},
        Case{R"(, "activation_checkpointing": {"granularity": "full", "every_n": 2,
                "cpu_checkpointing": true})",
             "activation_checkpointing.cpu_checkpointing",
             "needs recomputation of all blocks"},
        Case{R"(, "activation_checkpointing": {"granularity": "selective",
                "offload": {"device": "cpu"}})",
             "activation_checkpointing.offload.device",
             "needs recomputation of all blocks"}}) {
    EXPECT_THAT(problems_of("cuda", keys), AllOf(HasSubstr(key), HasSubstr(why))) << keys;
  }
}

// The layout says where the parts of a training are; on the CPU "cpu" is where they are anyway.
TEST(DeviceOfAPlan, KnowsWhatIsInTheMemoryOfTheHost) {
  const auto layout_on =
      [](const std::string& device) {
        return make_plan(json::parse(R"({"data": {"train": "a.txt"}, "train_batch_size": 8,
        "run": {"device": ")" + device + R"("},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                              "offload_optimizer": {"device": "cpu"}},
        "activation_checkpointing": {"granularity": "full",
                                     "offload": {"device": "cpu", "buffer_count": 3}}})",
                                     "c.json"),
                         2,
                         "c.json")
            .layout();
      };
  const parallel::Layout there = layout_on("cuda"), here = layout_on("cpu");
  EXPECT_TRUE(there.weights_on_host);
  EXPECT_EQ(there.residency(), parallel::Residency::OnHost);
  EXPECT_EQ(there.host_activations, 3);
  EXPECT_FALSE(here.weights_on_host);
  EXPECT_EQ(here.residency(), parallel::Residency::Sharded);
  EXPECT_EQ(here.host_activations, std::nullopt);
}

TEST(DeviceOfAPlan, IsOfferedTheMemoryOfTheHostIfItsOwnIsShort) {
  const Plan plan = make_plan(json::parse(R"({"data": {"train": "a.txt"}, "train_batch_size": 8,
      "model": {"preset": "nano"}, "bf16": {"enabled": true}, "run": {"device": "cuda"}})",
                                          "c.json"),
                              2,
                              "c.json");
  std::vector<std::string> keys;
  std::int64_t before = 0;
  for (const OffloadRung& rung : offload_ladder(plan, /*available=*/1, ".")) {
    keys.push_back(rung.keys);
    EXPECT_EQ(rung.disk.total(), 0);
    EXPECT_GE(rung.need.on_host, before);
    before = rung.need.on_host;
  }
  EXPECT_THAT(keys,
              testing::ElementsAre("activation_checkpointing.granularity full",
                                   "zero_optimization.stage 2",
                                   "zero_optimization.stage 3",
                                   R"(activation_checkpointing.offload {"device": "cpu"})",
                                   R"(zero_optimization.offload_optimizer {"device": "cpu"})",
                                   R"(zero_optimization.offload_param {"device": "cpu"})"));
  EXPECT_GT(before, 0);
}

Plan plan_of(const std::string& device, const std::string& offload) {
  return make_plan(
      json::parse(
          R"({"data": {"train": "a.txt"}, "train_batch_size": 8, "bf16": {"enabled": true},
              "run": {"device": ")" +
              device + R"("}, "zero_optimization": {"stage": 1, "offload_optimizer": )" + offload +
              "}}",
          "c.json"),
      1,
      "c.json");
}

TEST(DeviceOfAPlan, CountsTheSecondSetOfEarlyUpdates) {
  const Plan plain = plan_of("cuda", R"({"device": "cpu"})"),
             early = plan_of("cuda", R"({"device": "cpu", "super_offload": true})");
  const MemoryEstimate before = estimate_memory(plain), after = estimate_memory(early);
  const double params = static_cast<double>(plain.model().resolved.num_parameters),
               more = static_cast<double>(after.on_host - before.on_host);
  // Masters, two moments and the rounded weights; and three gradients of the largest buffer.
  EXPECT_GE(more, 14 * params);
  EXPECT_LE(more, (14 + 3 * 4) * params + (1 << 20));
  EXPECT_EQ(after.total(), before.total());

  EXPECT_THAT(less_on_host(early), HasSubstr("super_offload to false"));
  EXPECT_THAT(less_on_host(plain), testing::Not(HasSubstr("super_offload")));

  const Plan on_cpu = plan_of("cpu", R"({"device": "cpu", "super_offload": true})");
  EXPECT_EQ(estimate_memory(on_cpu).total(),
            estimate_memory(plan_of("cpu", R"({"device": "none"})")).total());
  EXPECT_THAT(on_cpu.notes(), testing::Contains(HasSubstr("super_offload has no effect here")));
}

TEST(DeviceOfAPlan, HasAKnownName) {
  EXPECT_THAT(problems_of("gpu", ""), AllOf(HasSubstr("run.device"), HasSubstr("gpu")));
}

}  // namespace
}  // namespace tessera::planner
