// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Every optimizer gives the same bits in every ZeRO stage, on every number of ranks, and after a
// resume into another layout. Those that come later join by being registered.
#include <string>
#include <vector>

#include "equivalence/matrix.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 3;

class Optimizers : public ::testing::TestWithParam<std::string> {};

TinyRun run_of(const std::string& optimizer) {
  TinyRun run;
  // mu-P scales rates by how much wider the model is than the one that was tuned.
  const std::string params = optimizer.starts_with("Mu") && optimizer != "Muon"
                                 ? R"({"hidden_size": 64, "base_hidden_size": 32})"
                                 : "{}";
  // Wide enough that shards split matrices: Muon and Adafactor must gather them.
  run.set("model.hidden_size", "64")
      .set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("optimizer", "{\"type\": \"" + optimizer + "\", \"params\": " + params + "}");
  return run;
}

TEST_P(Optimizers, GiveTheSameBitsInEveryLayout) {
  const TinyRun run = run_of(GetParam());
  const Trace reference = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);

  ASSERT_EQ(reference.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_NE(reference.losses[0], reference.losses[2]) << "nothing was learnt";
  for (const Layout& layout : {Layout{.ranks = 2, .accumulation = 2, .stage = 0},
                               Layout{.ranks = 4, .accumulation = 1, .stage = 1},
                               Layout{.ranks = 2, .accumulation = 2, .stage = 2},
                               Layout{.ranks = 4, .accumulation = 1, .stage = 3}}) {
    SCOPED_TRACE("stage " + std::to_string(layout.stage));
    expect_same_bits(reference, run.train(layout, kSteps));
  }
}

TEST_P(Optimizers, GoOnInAnotherLayoutWithTheSameBits) {
  const TinyRun run = run_of(GetParam());
  const Layout three{.ranks = 4, .accumulation = 1, .stage = 3},
      one{.ranks = 2, .accumulation = 2, .stage = 1};
  const Trace whole = run.train(one, 2 * kSteps);
  const files::TempDir folder;
  (void)run.train(three, kSteps, folder.path());

  const Trace rest = run.train(one, 2 * kSteps, {}, *checkpoint::newest(folder.path()));

  EXPECT_EQ(rest.digest, whole.digest);
}

/// Each layout continues from the checkpoint of the one before.
void expect_ring_equals(const TinyRun& run) {
  const std::vector<Layout> ring = {{.ranks = 4, .accumulation = 1, .stage = 3},
                                    {.ranks = 2, .accumulation = 4, .stage = 0, .pipeline = "2"},
                                    {.ranks = 1, .accumulation = 4, .stage = 0},
                                    {.ranks = 2, .accumulation = 2, .stage = 2}};
  const std::int64_t whole_steps = 2 * std::ssize(ring);
  const Trace whole = run.train(ring.back(), whole_steps);
  std::vector<double> losses;
  Trace part;
  const files::TempDir folder;
  for (const Layout& layout : ring) {
    const auto before = checkpoint::newest(folder.path());
    const auto steps = static_cast<std::int64_t>(losses.size()) + 2;
    part = run.train(layout, steps, folder.path(), before.value_or(std::filesystem::path()));
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
  }
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(part.digest, whole.digest);
}

TEST_P(Optimizers, GoRoundARingOfLayoutsInBf16WithTheSameBits) {
  TinyRun run = run_of(GetParam());
  run.set("bf16.enabled", "true");

  expect_ring_equals(run);
}

// The scale is halved in the first steps, by which they are skipped, and grows again: its counters
// go round too.
TEST(OptimizersIn16Bits, GoRoundARingOfLayoutsWithTheirLossScale) {
  for (const char* rule : {"AdamW", "SGD"}) {
    TinyRun run = run_of(rule);
    run.set("fp16.enabled", "true")
        .set("fp16.initial_scale_power", "26")
        .set("fp16.loss_scale_window", "3")
        .set("fp16.hysteresis", "1");
    expect_ring_equals(run);
  }
}

INSTANTIATE_TEST_SUITE_P(Registered,
                         Optimizers,
                         ::testing::ValuesIn(exact_rules()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::test
