// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What a layer that several ranks hold moves and keeps: two all-reduces forward and two backward,
// and as much memory as was planned.
#include <string>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/planner/memory.h"

namespace tessera::testing {
namespace {

constexpr std::int64_t kB = 2, kT = 16, kC = 128;
// Of a layer: matrices and biases that are cut, and values that every rank has.
constexpr std::int64_t kCutTensors = 6, kReplicated = 6 * kC;

TinyRun run_with(int layers) {
  TinyRun run;
  run.set("model.num_layers", std::to_string(layers))
      .set("model.hidden_size", std::to_string(kC))
      .set("model.dropout", "0");
  return run;
}

/// Elements of a step that one layer more makes.
std::int64_t of_one_layer(const Layout& layout) {
  return cost_of(run_with(3), layout).traffic.elements -
         cost_of(run_with(2), layout).traffic.elements;
}

// An all-reduce counts twice its data. One number for each tensor that is cut makes the norm.
TEST(TensorParallelTraffic, OfALayerIsFourAllReduces) {
  EXPECT_EQ(of_one_layer({.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2}),
            4 * 2 * kB * kT * kC + 2 * kCutTensors);
}

// Gathers and scatters count once theirs; gradients of what every rank has are added once a step.
TEST(TensorParallelTraffic, OfCutTokensIsTheSameInTwiceAsManyCalls) {
  EXPECT_EQ(
      of_one_layer({.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2, .sequence = true}),
      8 * kB * kT * kC + 2 * kCutTensors + 2 * kReplicated);
}

TEST(TensorParallelMemory, IsWhatWasPlanned) {
  const TinyRun run = run_with(4);
  for (const Layout& layout : {Layout{.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2},
                               Layout{.ranks = 4, .micro_batch = kB, .stage = 1, .tensor = 2},
                               Layout{.ranks = 4, .micro_batch = kB, .stage = 0, .tensor = 4}}) {
    SCOPED_TRACE(std::to_string(layout.ranks) + " ranks, tensor " + std::to_string(layout.tensor));
    const Cost cost = cost_of(run, layout);
    const planner::MemoryEstimate plan = planner::estimate_memory(run.plan(layout));
    // Every parameter is padded to whole chunks of 1,024 elements, which small vectors feel.
    const auto near = [](std::int64_t planned, std::int64_t kept, const char* what) {
      EXPECT_NEAR(static_cast<double>(kept),
                  static_cast<double>(planned),
                  0.15 * static_cast<double>(planned))
          << what;
    };
    near(plan.parameters, bytes(cost, memory::Tag::Parameters), "parameters");
    near(plan.optimizer, bytes(cost, memory::Tag::Optimizer), "optimizer");
    near(plan.gradients, bytes(cost, memory::Tag::Gradients), "gradients");
  }
  const Layout one{.ranks = 1, .micro_batch = kB, .stage = 0},
      two{.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2};
  EXPECT_LT(static_cast<double>(bytes(cost_of(run, two), memory::Tag::Parameters)),
            0.6 * static_cast<double>(bytes(cost_of(run, one), memory::Tag::Parameters)));
}

}  // namespace
}  // namespace tessera::testing
