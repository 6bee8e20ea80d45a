// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 900
// The combinations of combinations_test.cpp with their ranks on two hosts: what they promise does
// not depend on where the ranks are. combinations_whole_test.cpp has every pair of values. And the
// bytes that a step sends between the hosts.
#include <cstddef>
#include <string>
#include <vector>

#include "equivalence/combinations.h"
#include "equivalence/zero_cost.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

TEST(CombinationsOnTwoHosts, OfEveryValueEqualOneRank) {
  std::vector<Combination> cells = selection(1);
  std::erase_if(cells, [](const Combination& cell) { return cell.is_refused(); });
  // As many as the largest dimension has values.
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
  // Each of two ranks sends half of its gradients and its half of the weights. Of four ranks each
  // sends the other host's half of its gradients, and its quarter of the weights once. Stage 3
  // gathers weights for the forward and for the backward pass. A code of 8 bits has its part of a
  // scale for 256 of them.
  for (const Form& form : {Form{2, 1, "fp32", 4 + 4},
                           Form{2, 1, "bf16", 2 + 4},
                           Form{2, 1, "int8", 1 + 4.0 / 256 + 4},
                           Form{4, 1, "fp32", 8 + 4},
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

}  // namespace
}  // namespace tessera::test
