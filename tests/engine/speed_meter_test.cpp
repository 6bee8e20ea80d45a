// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/speed_meter.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/engine/launch.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/peak.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

TEST(Speed, IsAShareOfThePeak) {
  const Speed speed{.flops = 3e12, .peak = 4e12};

  EXPECT_EQ(speed.text(2.0), "1.5 TFLOP/s (MFU 38%)");
  EXPECT_EQ((Speed{.flops = 3e12, .peak = 4e12, .least_s = 1.0}.text(2.0)),
            "1.5 TFLOP/s (MFU 38%, 50% of the speed of light)");
  EXPECT_EQ(speed.text(0.0), "");
  EXPECT_EQ(Speed().text(1.0), "");
}

TEST(Speed, IsReadFromARunFolderThatHasIt) {
  const files::TempDir dir;
  EXPECT_FALSE(read_speed(dir.path()).has_value());

  files::write_atomic(dir.path() / "speed.json", R"({"flops_per_step":8,"peak_flops_per_s":16})");
  const auto speed = read_speed(dir.path());
  ASSERT_TRUE(speed.has_value());
  EXPECT_EQ(speed->flops, 8.0);
  EXPECT_EQ(speed->peak, 16.0);
  EXPECT_EQ(speed->least_s, 0.0);

  files::write_atomic(dir.path() / "speed.json", "{\"flops_per");
  EXPECT_FALSE(read_speed(dir.path()).has_value());
}

TEST(Speed, KnowsTheRateOfARanksThreadsFromTheMachineFile) {
  const files::TempDir dir;
  const char* const before = std::getenv("TESSERA_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TESSERA_CACHE", dir.path().c_str(), 1);
  const planner::Plan plan = planner::make_plan(
      json::parse(R"({"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2},
                      "data": {"train": "text.txt", "sequence_length": 8}, "trainer": {"max_steps": 1},
                      "train_batch_size": 1,
                      "run": {"threads_per_rank": 1}})",
                  "plan.json"),
      1,
      "plan.json");

  EXPECT_EQ(known_rate(plan), 0.0) << "nothing is measured";
  files::write_atomic(dir.path() / "machine.json",
                      R"({"title": "a test", "memory_bytes": 1e9, "cores": 2,
                          "flops_per_s": {"fp32": 1e11}, "efficiency": {"large_product": 0.5},
                          "memory": {"bytes_per_s": 1e10}, "in_host": {"bytes_per_s": 1e9}})");
  EXPECT_DOUBLE_EQ(known_rate(plan), 5e10) << "one of two cores";
  EXPECT_DOUBLE_EQ((Speed{.flops = 1e10, .peak = 5e10}.share(0.5)), 0.4);

  if (kept.empty())
    ::unsetenv("TESSERA_CACHE");
  else
    ::setenv("TESSERA_CACHE", kept.c_str(), 1);
}

TEST(Speed, IsMeasuredWithoutMemoryOfTheTraining) {
  prepare_process(1);
  memory::Ledger training;
  const memory::ScopedLedger counted(training);
  const at::Tensor kept = at::ones({1024});
  const std::int64_t before = training.usage().total_peak;
  ASSERT_GE(before, 4096) << "the ledger counts";

  ops::peak_flops(DType::F32);

  EXPECT_EQ(training.usage().total_peak, before);
}

}  // namespace
}  // namespace tessera::engine
