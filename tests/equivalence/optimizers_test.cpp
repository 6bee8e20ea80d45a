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
  // Wide enough that matrices are cut by shards: Muon and Adafactor must gather them.
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

INSTANTIATE_TEST_SUITE_P(Registered,
                         Optimizers,
                         ::testing::ValuesIn(exact_rules()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::test
