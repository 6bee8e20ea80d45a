// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Every optimizer goes on in another layout with the same bits; matrix_test.cpp compares layouts
// that are not interrupted. Optimizers that come later join by being registered.
#include <string>
#include <vector>

#include "equivalence/matrix.h"

namespace tessera::test {
namespace {

class Optimizers : public ::testing::TestWithParam<std::string> {};

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
  TinyRun run = run_with_optimizer(GetParam());
  run.set("bf16.enabled", "true");

  expect_ring_equals(run);
}

// The scale is halved in the first steps, by which they are skipped, and grows again: its counters
// go round too.
TEST(OptimizersIn16Bits, GoRoundARingOfLayoutsWithTheirLossScale) {
  for (const char* rule : {"AdamW", "SGD"}) {
    TinyRun run = run_with_optimizer(rule);
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
