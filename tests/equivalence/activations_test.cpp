// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What a step keeps for its backward pass, compared with the plan: dropout draws its bits again,
// padding is a bias, and neither keeps the probabilities of attention.
#include "equivalence/activations.h"

#include <string>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

// Probabilities in fp32 would be most of a layer: 256 for each of 4 heads, next to the token's 80
// values.
TinyRun long_run(const std::string& dropout) {
  TinyRun run;
  run.set("model",
          R"({"num_layers": 4, "hidden_size": 16, "num_heads": 4, "max_positions": 256,
              "dropout": )" +
              dropout + "}")
      .set("data.sequence_length", "256");
  return run;
}

TEST(ActivationMemory, IsWhatWasPlannedWithDropoutAndPaddingToo) {
  const Layout alone{.ranks = 1, .micro_batch = 4, .stage = 0};

  expect_planned(long_run("0"), alone, "plain");
  expect_planned(long_run("0.1"), alone, "dropout");
  expect_planned(long_run("0").use_padded_documents(), alone, "padding");
  expect_planned(long_run("0.1").use_padded_documents(), alone, "both");
}

TEST(ActivationMemory, OfRanksThatShareTokensIsWhatWasPlannedWithDropout) {
  for (const char* mode : {"ring", "ulysses"}) {
    const Layout layout{
        .ranks = 2, .micro_batch = 4, .stage = 0, .context = 2, .context_mode = mode};
    expect_planned(long_run("0"), layout, std::string(mode) + ", plain");
    expect_planned(long_run("0.1"), layout, std::string(mode) + ", dropout");
  }
}

}  // namespace
}  // namespace tessera::test
