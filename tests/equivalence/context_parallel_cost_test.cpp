// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Traffic and memory of ranks that share tokens: keys and values around the ring, or tokens
// exchanged for heads; sums of the gradients; and as much memory as planned.
#include <string>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kTokens = 16, kChannels = 128, kBatch = 2;
// Elements of a layer: four matrices, and eight vectors that are padded to whole chunks.
constexpr std::int64_t kOfLayer = 12 * kChannels * kChannels + 8 * 1024;

TinyRun run_with(int layers) {
  TinyRun run;
  run.set("model.num_layers", std::to_string(layers))
      .set("model.hidden_size", std::to_string(kChannels))
      .set("model.dropout", "0");
  return run;
}

/// Elements that one more layer adds to a step's traffic, besides the sums of its gradients.
std::int64_t of_one_layer(const Layout& layout) {
  const std::int64_t counted = cost_of(run_with(3), layout).traffic.elements -
                               cost_of(run_with(2), layout).traffic.elements - 2 * kOfLayer;
  EXPECT_EQ(predicted_in_layers(run_with(3), layout) - predicted_in_layers(run_with(2), layout),
            counted)
      << "predicted";
  return counted;
}

// Forward P - 1 times keys and values, backward as often, and their gradients P times.
TEST(ContextParallelTraffic, OfARingIsKeysAndValuesAndTheirGradients) {
  for (const std::int64_t ranks : {2, 4}) {
    const std::int64_t values = kBatch * kTokens / ranks * kChannels;

    EXPECT_EQ(of_one_layer({.ranks = static_cast<int>(ranks),
                            .micro_batch = kBatch,
                            .stage = 0,
                            .context = static_cast<int>(ranks)}),
              (3 * ranks - 2) * 2 * values);
  }
}

TEST(ContextParallelTraffic, OfUlyssesIsFourTensorsEitherWay) {
  for (const std::int64_t ranks : {2, 4}) {
    const std::int64_t values = kBatch * kTokens / ranks * kChannels;

    EXPECT_EQ(of_one_layer({.ranks = static_cast<int>(ranks),
                            .micro_batch = kBatch,
                            .stage = 0,
                            .context = static_cast<int>(ranks),
                            .context_mode = "ulysses"}),
              2 * 4 * values);
  }
}

TEST(ContextParallelMemory, IsWhatWasPlanned) {
  const TinyRun run = run_with(4);
  for (const Layout& layout : {Layout{.ranks = 2, .micro_batch = kBatch, .stage = 0, .context = 2},
                               Layout{.ranks = 4, .micro_batch = kBatch, .stage = 1, .context = 2},
                               Layout{.ranks = 4, .micro_batch = kBatch, .stage = 2, .context = 2},
                               Layout{.ranks = 4,
                               .micro_batch = kBatch,
                               .stage = 0,
                               .context = 4,
                               .context_mode = "ulysses"}}) {
    SCOPED_TRACE(std::to_string(layout.ranks) + " ranks, context " +
                 std::to_string(layout.context));
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
    near(plan.gradients, all_gradient_bytes(cost), "gradients");
  }
}

}  // namespace
}  // namespace tessera::test
