// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Trainings whose weights, gradients and optimizer states are on a device whose memory the host
// must not access give the losses and the checkpoint of the CPU.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "devices/guarded_device.h"
#include "devices/staged_transport.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 3;

TinyRun on_device(TinyRun run) {
  return run.use_world([](comm::World& host) { return world_on(guarded_device(), host); });
}

/// True if the CPU runs the kernels of the guarded device (TESSERA_KERNELS=aten).
bool same_kernels() {
  const char* const kernels = std::getenv("TESSERA_KERNELS");
  return kernels != nullptr && std::string(kernels) == "aten";
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], bound * std::abs(b[i])) << "step " << i + 1;
}

struct Case {
  const char* name;
  Layout layout;
  const char* key = "gradient_clipping";
  const char* value = "1.0";
};

class DeviceTraining : public ::testing::TestWithParam<Case> {};

// With the same kernels all bits are equal. Other kernels round differently: the first losses are
// equal within fp32's precision. A step of AdamW changes a weight by lr whatever its gradient's
// size, so later losses differ by the effect of three such steps on a few near-zero gradients.
TEST_P(DeviceTraining, GivesTheResultOfTheCpu) {
  TinyRun run;
  run.set(GetParam().key, GetParam().value);

  const Trace device = on_device(run).train(GetParam().layout, kSteps),
              cpu = run.train(GetParam().layout, kSteps);

  if (same_kernels()) return expect_same_bits(device, cpu);
  expect_near(device.losses, cpu.losses, 2e-3);
  expect_near(device.eval_losses, cpu.eval_losses, 2e-3);
  EXPECT_EQ(device.digest.size(), cpu.digest.size());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    DeviceTraining,
    ::testing::Values(Case{"Alone", {.accumulation = 2}},
                      Case{"Stage0", {.ranks = 2, .stage = 0}},
                      Case{"Stage1", {.ranks = 2, .accumulation = 2, .stage = 1}},
                      Case{"Stage2", {.ranks = 2, .accumulation = 2, .stage = 2}},
                      Case{"Stage3", {.ranks = 2, .accumulation = 2, .stage = 3}},
                      Case{"Bf16", {.ranks = 2, .stage = 1}, "bf16", R"({"enabled": true})"},
                      Case{"Fp16", {.ranks = 2, .stage = 2}, "fp16", R"({"enabled": true})"},
                      Case{"Lamb", {.ranks = 2, .stage = 1}, "optimizer.type", "\"Lamb\""}),
    [](const auto& info) { return std::string(info.param.name); });

void expect_refused(const TinyRun& run, const Layout& layout, const char* what) {
  try {
    (void)on_device(run).train(layout, 1);
    FAIL() << "trained on a device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(what));
  }
}

TEST(DeviceTraining, RefusesWhatWorksOnMemoryOfTheHost) {
  TinyRun run, average;
  run.set("optimizer.type", "\"Muon\"");
  average.set("trainer.ema.decay", "0.9");
  expect_refused(run, {}, "this optimizer updates memory of the host only");
  expect_refused(average, {}, "this optimizer updates memory of the host only");
  expect_refused(TinyRun(), {.ranks = 2, .tensor = 2}, "tensor and context parallelism");
  expect_refused(TinyRun(), {.ranks = 2, .context = 2}, "tensor and context parallelism");
}

}  // namespace
}  // namespace tessera::test
