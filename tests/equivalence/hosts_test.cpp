// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 900
// The combinations of combinations_test.cpp with their ranks on two hosts: what they promise does
// not depend on where the ranks are. combinations_whole_test.cpp has every pair of values. The same
// of compressed travel and of reinforcement learning. And the bytes that a step sends between the
// hosts.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "equivalence/combinations.h"
#include "equivalence/zero_cost.h"
#include "rlhf/support.h"
#include <gtest/gtest.h>

#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

TEST(CombinationsOnTwoHosts, OfEveryValueEqualOneRank) {
  std::vector<Combination> cells = selection(1);
  std::erase_if(cells, [](const Combination& cell) { return cell.is_refused(); });
  // There are at least as many combinations as the largest dimension has values.
  ASSERT_GE(cells.size(), Combination::kTensor.size());

  train_all(cells, /*two_hosts=*/true);
}

/// The bytes that one step of a layout sends between two hosts.
double bytes_of_a_step(TinyRun run, const Layout& layout) {
  const OnTwoHosts hosts;
  run.use_world(hosts);
  const auto sent = [&](std::int64_t steps) {
    const std::size_t before = hosts.bytes_sent();
    static_cast<void>(run.train(layout, steps));
    return static_cast<double>(hosts.bytes_sent() - before);
  };
  const double two = sent(2);
  return sent(3) - two;
}

TEST(BytesBetweenHosts, OfAStepAreThoseOfTheForm) {
  // Norms, counts of labels, the heads of messages, and rows of the table of tokens that have no
  // gradient.
  constexpr double kOthers = 0.03;
  TinyRun run;
  run.set("model",
          R"({"num_layers": 2, "hidden_size": 256, "num_heads": 4, "max_positions": 16,
              "tie_embeddings": false})")
      .set("gradient_reduction", "\"once\"")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  struct Form {
    int ranks, stage;
    std::string dtype;
    double bytes;  ///< per parameter
  };
  // Each of two ranks sends half of its gradients and its half of the weights. Of four ranks, those
  // of the first host send the sum of its gradients, those of the second one send half of the whole
  // sum back, and each sends its quarter of the weights once. Codes of four ranks are not added on
  // the way: each sends the other host's half of its gradients. Stage 3 gathers weights for the
  // forward and for the backward pass. A code of 8 bits has its part of a scale for 256 of them.
  for (const Form& form : {Form{2, 1, "fp32", 4 + 4},
                           Form{2, 1, "bf16", 2 + 4},
                           Form{2, 1, "int8", 1 + 4.0 / 256 + 4},
                           Form{4, 1, "fp32", 4 + 2 + 4},
                           Form{4, 1, "int8", 2 * (1 + 4.0 / 256) + 4},
                           Form{2, 3, "fp32", 4 + 2 * 4}}) {
    SCOPED_TRACE(form.dtype + ", stage " + std::to_string(form.stage) + " on " +
                 std::to_string(form.ranks) + " ranks");
    const Layout layout{
        .ranks = form.ranks, .accumulation = 1, .micro_batch = 1, .stage = form.stage};
    run.set("communication_data_type", '"' + form.dtype + '"');
    const double expected = form.bytes * cost_of(run, layout).padded;

    EXPECT_NEAR(bytes_of_a_step(run, layout), expected, kOthers * expected);
  }
}

// The plan counts as if all operations of a step were in progress at once, which they seldom are.
// The part that is, and the data that ranks ahead have sent, depend on the timing: 0.3 to 1.03 of
// the planned bytes in two rounds. The bounds leave more than that, for other timings.
TEST(MemoryBetweenHosts, IsWhatThePlanCounts) {
  TinyRun run;
  run.set("model",
          R"({"num_layers": 4, "hidden_size": 256, "num_heads": 4, "max_positions": 16,
              "tie_embeddings": false})")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  constexpr auto kTag = static_cast<std::size_t>(memory::Tag::Communication);
  for (const std::string reduction : {"once", "each"}) {
    for (const std::string dtype : {"fp32", "int8"}) {
      for (const int ranks : {2, 4}) {
        for (const int stage : {0, 1, 2, 3}) {
          const Layout layout{.ranks = ranks, .accumulation = 2, .micro_batch = 1, .stage = stage};
          SCOPED_TRACE(text_of(layout) + " " + reduction + " " + dtype);
          run.set("gradient_reduction", '"' + reduction + '"')
              .set("communication_data_type", '"' + dtype + '"');
          const std::int64_t planned = planner::travel_bytes(run.plan(layout), ranks / 2);
          const std::int64_t on_one = cost_of(run, layout).usage.peak[kTag];
          const std::int64_t peak = cost_of(run, layout, OnTwoHosts()).usage.peak[kTag] - on_one;
          EXPECT_LE(peak, planned * 3 / 2);
          EXPECT_LE(planned, 8 * peak);
        }
      }
    }
  }
}

/// The losses of a training on two hosts, and the bytes that it sent between them.
struct Crossing {
  Trace trace;
  double bytes = 0;
};
Crossing cross(TinyRun run, const Layout& layout, std::int64_t steps) {
  const OnTwoHosts hosts;
  Crossing out;
  out.trace = run.use_world(hosts).train(layout, steps);
  out.bytes = static_cast<double>(hosts.bytes_sent());
  return out;
}

// The blocks are large enough for sums that go from host to host, also those that are added to what
// the owners have.
TEST(SumsFromHostToHost, HaveTheBitsOfOneRank) {
  constexpr std::int64_t kSteps = 2;
  TinyRun run;
  run.set("model", R"({"num_layers": 2, "hidden_size": 224, "num_heads": 4, "max_positions": 16})")
      .set("gradient_reduction", "\"each\"");
  const Trace one = run.train({.ranks = 1, .accumulation = 16, .micro_batch = 1}, kSteps);

  for (const int stage : {0, 1, 3}) {
    for (const int ranks : {4, 8}) {
      const Layout layout{
          .ranks = ranks, .accumulation = 16 / ranks, .micro_batch = 1, .stage = stage};
      SCOPED_TRACE(text_of(layout));
      expect_same_bits(one, cross(run, layout, kSteps).trace);
    }
  }
}

TEST(CompressedBetweenHosts, QuantizedWeightsAndGradientsHaveTheBitsOfOneHost) {
  constexpr std::int64_t kSteps = 4;
  TinyRun exact;
  exact.set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("model.hidden_size", "64")
      .set("gradient_reduction", "\"once\"");
  TinyRun rounded = exact;
  rounded.set("zero_optimization.zero_quantized_weights", "true")
      .set("zero_optimization.zero_quantized_gradients", "true");
  TinyRun grouped = rounded;  // hpZ: each host gathers from its own ranks
  grouped.set("zero_optimization.zero_hpz_partition_size", "2");
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Layout layout{.ranks = ranks, .accumulation = 4 / ranks, .stage = 3};
    const Crossing whole = cross(exact, layout, kSteps), narrow = cross(rounded, layout, kSteps);

    expect_same_bits(rounded.train(layout, kSteps), narrow.trace);
    // Codes of 8 bits instead of 32, but norms, heads and the initial weights are as they were.
    EXPECT_LT(narrow.bytes, 0.5 * whole.bytes);
    // A weight and a gradient change by at most 1/254 of the largest of their block.
    ASSERT_EQ(narrow.trace.losses.size(), whole.trace.losses.size());
    for (std::size_t i = 0; i < whole.trace.losses.size(); ++i)
      EXPECT_NEAR(narrow.trace.losses[i], whole.trace.losses[i], 0.01 * whole.trace.losses[i]);
    if (ranks == 4) {
      const Crossing inside = cross(grouped, layout, kSteps);
      expect_same_bits(grouped.train(layout, kSteps), inside.trace);
      EXPECT_LT(inside.bytes, narrow.bytes);
    }
  }
}

TEST(CompressedBetweenHosts, SignsHaveTheBitsOfOneHost) {
  constexpr std::int64_t kSteps = 6, kWarmUp = 3;
  for (const std::string optimizer : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    TinyRun run;
    run.set("model.hidden_size", "64")
        .set("optimizer",
             R"({"type": ")" + optimizer + R"(", "params": {"lr": 1e-3, "eps": 1e-4, )" +
                 (optimizer == "ZeroOneAdam" ? R"("var_freeze_step": 3, "var_update_scaler": 1,
                           "local_step_scaler": 2, "local_step_clipper": 4)"
                                             : R"("freeze_step": 3)") +
                 "}}");
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(optimizer + " on " + std::to_string(ranks) + " ranks");
      const Layout layout{.ranks = ranks, .accumulation = 1, .stage = 0};
      const Crossing whole = cross(run, layout, kSteps);

      expect_same_bits(run.train(layout, kSteps), whole.trace);
      // Nothing but signs and scales crosses behind the warm-up, where gradients of fp32 do.
      EXPECT_LT(whole.bytes, 1.5 * cross(run, layout, kWarmUp).bytes);
    }
  }
}

TEST(RlOnTwoHosts, HasTheBitsOfOneRank) {
  constexpr std::int64_t kSteps = 3;
  std::string prompts;
  for (int i = 0; i < 12; ++i)
    prompts += R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
  TinyRun run = reinforcing(prompts,
                            R"({"algorithm": "grpo", "samples": 2, "max_new_tokens": 3,
                                "rewards": [{"type": "regex", "pattern": "[@-~]"}]})");
  run.set("data.validation_fraction", "0.25");
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(kSteps));

  for (const Layout& layout : {Layout{.ranks = 2, .accumulation = 2, .stage = 1},
                               Layout{.ranks = 4, .accumulation = 1, .stage = 3}}) {
    SCOPED_TRACE(text_of(layout));
    const Crossing crossing = cross(run, layout, kSteps);
    expect_same_bits(one, crossing.trace);
    EXPECT_GT(crossing.bytes, 0);
  }
}

}  // namespace
}  // namespace tessera::test
