// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/speed_meter.h"

#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/engine/launch.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/peak.h"

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
