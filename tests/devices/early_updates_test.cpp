// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Updates that begin on the host during the backward pass of simulated GPUs change no bit, whether
// the assumption under which they are made is right or not.
#include "tessera/parallel/early_updates.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_world.h"
#include "devices/fake_nccl.h"
#include "devices/simulated_gpu.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

using parallel::EarlyCounts;
using testing::IsEmpty;

using EarlyKeys = std::vector<std::pair<const char*, std::string>>;

const char* const kEarlyBf16 = R"({"enabled": true})";
const char* const kEarly = R"({"device": "cpu", "super_offload": true})";

struct EarlyCase {
  const char* name;
  Layout layout;
  EarlyKeys keys = {};
  std::int64_t steps = 3;
  bool commits = true, repeats = false;  ///< some updates of rank 0 do
  bool nccl = false;
};

TinyRun early_run(const EarlyKeys& keys) {
  // The CPU runs the kernels of the simulated GPU in this program.
  setenv("TESSERA_KERNELS", "aten", /*overwrite=*/0);
  TinyRun run;
  run.set("gradient_clipping", "1e6");
  for (const auto& [key, value] : keys)
    run.set(key, value);
  return run;
}

EarlyCounts sum_of(const std::vector<EarlyCounts>& steps) {
  EarlyCounts out;
  for (const EarlyCounts& one : steps) {
    out.committed += one.committed;
    out.repeated += one.repeated;
  }
  return out;
}

class EarlyTraining : public ::testing::TestWithParam<EarlyCase> {};

TEST_P(EarlyTraining, GivesTheBitsOfTheCpu) {
  const EarlyCase& given = GetParam();
  const TinyRun cpu = early_run(given.keys);
  TinyRun early = cpu;
  early.set("zero_optimization.offload_optimizer", kEarly);
  if (given.nccl)
    early.use_world([](comm::World& host) { return world_with_nccl(host, fake_nccl()); });
  else
    early.use_world(world_on_gpu);
  (void)take_violations();

  const Trace ours = early.train(given.layout, given.steps),
              expected = cpu.train(given.layout, given.steps);

  expect_same_bits(ours, expected);
  EXPECT_THAT(take_violations(), IsEmpty());
  const EarlyCounts counts = sum_of(ours.early);
  EXPECT_EQ(counts.committed > 0, given.commits) << counts.committed;
  EXPECT_EQ(counts.repeated > 0, given.repeats) << counts.repeated;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    EarlyTraining,
    ::testing::Values(
        EarlyCase{"Alone", {.accumulation = 2}},
        EarlyCase{"Clipped", {.accumulation = 2}, {{"gradient_clipping", "1e-4"}}, 3, false, true},
        EarlyCase{"Bf16", {}, {{"bf16", kEarlyBf16}}},
        EarlyCase{"Stage1", {.ranks = 2, .accumulation = 2, .stage = 1}},
        EarlyCase{"Stage2Clipped",
                  {.ranks = 2, .stage = 2},
                  {{"bf16", kEarlyBf16}, {"gradient_clipping", "1e-4"}},
                  2,
                  false,
                  true},
        EarlyCase{
            "Stage3",
            {.ranks = 2, .accumulation = 2, .stage = 3},
            {{"bf16", kEarlyBf16}, {"zero_optimization.stage3_param_persistence_threshold", "0"}}},
        EarlyCase{"Once", {.ranks = 2, .stage = 2}, {{"gradient_reduction", "\"once\""}}},
        EarlyCase{"Nccl",
                  {.ranks = 2, .accumulation = 2, .stage = 2},
                  {{"bf16", kEarlyBf16}},
                  3,
                  true,
                  false,
                  true},
        EarlyCase{"Pipeline",
                  {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"},
                  {{"bf16", kEarlyBf16}}},
        EarlyCase{"Average",
                  {.ranks = 2, .stage = 2},
                  {{"trainer.ema.decay", "0.9"}, {"eval.weights", "\"ema\""}}},
        EarlyCase{
            "Lora",
            {},
            {{"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})"}}},
        // The first scales overflow fp16, so that steps are skipped.
        EarlyCase{"Fp16",
                  {.ranks = 2, .stage = 2},
                  {{"fp16", R"({"enabled": true, "initial_scale_power": 24, "hysteresis": 1})"}},
                  12,
                  true,
                  true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(EarlyUpdates, AreMadeAgainInStepsThatClip) {
  const std::vector<double> norms = early_run({}).train({}, 4).grad_norms;
  std::vector<double> sorted = norms;
  std::ranges::sort(sorted);
  ASSERT_LT(sorted[1], sorted[2]);
  const double limit = (sorted[1] + sorted[2]) / 2;
  const EarlyKeys keys = {{"gradient_clipping", fmt::format("{}", limit)}};
  const TinyRun cpu = early_run(keys);
  TinyRun early = cpu;
  early.set("zero_optimization.offload_optimizer", kEarly).use_world(world_on_gpu);

  const Trace ours = early.train({}, 4), expected = cpu.train({}, 4);

  expect_same_bits(ours, expected);
  for (std::size_t step = 0; step < 4; ++step) {
    const bool clips = ours.grad_norms[step] > limit;
    EXPECT_EQ(ours.early[step].repeated > 0, clips) << step;
    EXPECT_EQ(ours.early[step].committed > 0, !clips) << step;
  }
  const EarlyCounts all = sum_of(ours.early);
  EXPECT_GT(all.committed, 0);
  EXPECT_GT(all.repeated, 0);
}

TEST(EarlyUpdates, StopWhereMostStepsClip) {
  TinyRun run = early_run({{"gradient_clipping", "1e-4"}});
  run.set("zero_optimization.offload_optimizer", kEarly).use_world(world_on_gpu);
  const std::vector<EarlyCounts> steps = run.train({}, 12).early;
  // More than half of the last 16 steps were wrong after the ninth.
  for (std::size_t step = 0; step < steps.size(); ++step)
    EXPECT_EQ(steps[step].repeated > 0, step < 9) << step;
}

TEST(EarlyUpdates, ContinueFromACheckpointOfTheUpdateAfterwards) {
  const TinyRun cpu = early_run({{"bf16", kEarlyBf16}});
  TinyRun early = cpu;
  early.set("zero_optimization.offload_optimizer", kEarly).use_world(world_on_gpu);
  const Layout layout = {.ranks = 2, .stage = 2};
  const files::TempDir first, second;
  const Trace whole = cpu.train(layout, 4);

  (void)cpu.train(layout, 1, first.path());
  (void)early.train(layout, 3, second.path(), *checkpoint::newest(first.path()));
  const Trace rest = cpu.train(layout, 4, {}, *checkpoint::newest(second.path()));

  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(EarlyUpdates, AreFoundOutIfTheirCopiesDoNotWaitForTheGradient) {
  TinyRun run = early_run({});
  run.set("zero_optimization.offload_optimizer", kEarly).use_world(world_on_gpu);
  (void)run.train({.accumulation = 2}, 1);
  EXPECT_THAT(take_violations(), IsEmpty());
  const ScopedForgotten forgotten(Forgotten::WaitsOfOthers);
  (void)run.train({.accumulation = 2}, 1);
  EXPECT_THAT(take_violations(), testing::Contains(testing::HasSubstr("a copy to the host on")));
}

}  // namespace
}  // namespace tessera::test
