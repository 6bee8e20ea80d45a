// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What a layer that several ranks share moves and keeps: two all-reduces forward and two backward,
// and as much memory as planned.
#include <string>
#include <utility>
#include <vector>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kB = 2, kT = 16, kC = 128;
// Of a layer: the number of sharded matrices and biases, and of values that every rank has.
constexpr std::int64_t kCutTensors = 6, kReplicated = 6 * kC;

TinyRun run_with(int layers) {
  TinyRun run;
  run.set("model.num_layers", std::to_string(layers))
      .set("model.hidden_size", std::to_string(kC))
      .set("model.dropout", "0");
  return run;
}

/// Elements that one more layer adds to a step's traffic. `beside`: those that are not exchanged
/// within the layer, which the prediction from meta tensors leaves out.
std::int64_t of_one_layer(const Layout& layout, std::int64_t beside) {
  const std::int64_t counted =
      cost_of(run_with(3), layout).traffic.elements - cost_of(run_with(2), layout).traffic.elements;
  EXPECT_EQ(predicted_in_layers(run_with(3), layout) - predicted_in_layers(run_with(2), layout),
            counted - beside)
      << "predicted";
  return counted;
}

// An all-reduce counts twice its data. The norm takes one number for each sharded tensor.
TEST(TensorParallelTraffic, OfALayerIsFourAllReduces) {
  EXPECT_EQ(of_one_layer({.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2}, 2 * kCutTensors),
            4 * 2 * kB * kT * kC + 2 * kCutTensors);
}

// Gathers and scatters count their data once; gradients of replicated parameters are added once a
// step.
TEST(TensorParallelTraffic, OfCutTokensIsTheSameInTwiceAsManyCalls) {
  EXPECT_EQ(of_one_layer({.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2, .sequence = true},
                         2 * kCutTensors + 2 * kReplicated),
            8 * kB * kT * kC + 2 * kCutTensors + 2 * kReplicated);
}

/// A linear layer's input, weight and output on one rank.
struct Linear {
  std::int64_t x, w, y;
};
/// Query, key and value; attention's output; the two layers of the MLP.
std::vector<Linear> linears(std::int64_t rows, std::int64_t channel_parts, std::int64_t ranks) {
  std::vector<Linear> out;
  for (const auto& [inputs, outputs] :
       {std::pair{kC, 3 * kC}, std::pair{kC, kC}, std::pair{kC, 4 * kC}, std::pair{4 * kC, kC}})
    out.push_back(
        {rows * inputs / channel_parts, inputs * outputs / ranks, rows * outputs / channel_parts});
  return out;
}

/// The norm of the gradients takes a number of each of 12 tensors.
constexpr std::int64_t kInNorm = 2 * 12;

/// Sums of rows for two norms, gradients of vectors, and the norm of the gradients.
std::int64_t of_vectors(std::int64_t rows, std::int64_t q) {
  constexpr std::int64_t kNorms = 4 * kC, kBiases = 9 * kC;
  return 2 * 2 * (q * 2 * rows) + 2 * (kNorms + kBiases) / q + kInNorm;
}

// docs/parallelism.md has the forms.
TEST(TensorParallelTraffic, OfALayerOnASquareIsThatOfSumma) {
  constexpr std::int64_t q = 2;
  for (const std::int64_t depth : {1, 2}) {
    const std::int64_t batch = 2 * kB, rows = batch * kT / (depth * q);
    std::int64_t expected = of_vectors(rows, q);
    for (const Linear& linear : linears(rows, q, q * q))
      expected += (3 * q - 1) * (linear.x + linear.w) + (depth > 1 ? 2 * linear.w : 0);

    EXPECT_EQ(of_one_layer({.ranks = static_cast<int>(4 * depth),
                            .micro_batch = batch,
                            .stage = 0,
                            .tensor = static_cast<int>(4 * depth),
                            .mode = depth == 1 ? "2d" : "2.5d",
                            .depth = static_cast<int>(depth)},
                           kInNorm),
              expected);
  }
}

TEST(TensorParallelTraffic, OfALayerOnACubeIsThatOfItsFaces) {
  constexpr std::int64_t q = 2;
  const std::int64_t batch = 2 * kB, rows = batch * kT / (q * q);
  std::int64_t expected = of_vectors(rows, q);
  for (const Linear& linear : linears(rows, q, q * q * q))
    expected += q * (3 * linear.x + 3 * linear.w + 2 * linear.y);

  EXPECT_EQ(of_one_layer({.ranks = 8, .micro_batch = batch, .stage = 0, .tensor = 8, .mode = "3d"},
                         kInNorm),
            expected);
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
    near(plan.gradients, all_gradient_bytes(cost), "gradients");
  }
  const Layout one{.ranks = 1, .micro_batch = kB, .stage = 0},
      two{.ranks = 2, .micro_batch = kB, .stage = 0, .tensor = 2};
  EXPECT_LT(static_cast<double>(bytes(cost_of(run, two), memory::Tag::Parameters)),
            0.6 * static_cast<double>(bytes(cost_of(run, one), memory::Tag::Parameters)));
}

}  // namespace
}  // namespace tessera::test
