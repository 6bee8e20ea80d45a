// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Moments in eight or four bits: the same on any number of ranks and after a restart, close to
// those in fp32, in a quarter of the memory, or in an eighth.
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/planner/memory.h"

namespace tessera::test {
namespace {

TinyRun run_of(const std::string& type = "AdamW8bit", const std::string& more = "") {
  TinyRun run;
  return run.set("optimizer", R"({"type": ")" + type + R"(", "params": {"lr": 1e-3)" + more + "}}");
}
/// With this, every parameter of the tiny model is in eight bits.
const char* const kAll = R"(, "min_8bit_size": 1)";

TEST(EightBits, RanksTimesAccumulationGiveTheSameBits) {
  for (const char* precision : {"false", "true"}) {
    TinyRun run = run_of("AdamW8bit", kAll);
    run.set("bf16.enabled", precision);
    const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 5);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 0},
                                                    {.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(text_of(layout));
      expect_same_bits(one, run.train(layout, 5));
    }
  }
}

TEST(EightBits, GoOnToTheBit) {
  const TinyRun run = run_of("AdamW8bit", kAll);
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 6);
  const files::TempDir half;
  (void)run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 3, half.path());

  const Trace rest = run.train(
      {.ranks = 1, .accumulation = 4, .stage = 0}, 6, {}, *checkpoint::newest(half.path()));

  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(EightBits, LearnNearlyAsFp32Does) {
  const Layout layout = {.ranks = 1, .accumulation = 2};
  const Trace narrow = run_of("AdamW8bit", kAll).train(layout, 30),
              wide = run_of("AdamW").train(layout, 30);

  EXPECT_NE(narrow.losses, wide.losses);
  EXPECT_LT(narrow.losses.back(), 0.9 * narrow.losses.front());
  EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 0.02 * wide.losses.back());
  // Without parameters that are large enough, it is the same as AdamW.
  EXPECT_EQ(run_of("AdamW8bit", R"(, "min_8bit_size": 100000000)").train(layout, 5).losses,
            std::vector<double>(wide.losses.begin(), wide.losses.begin() + 5));
}

TEST(EightBits, TakeAQuarterOfTheMemory) {
  const auto optimizer_bytes = [](TinyRun run) {
    run.set("model.hidden_size", "256").set("model.num_heads", "4");
    return static_cast<double>(planner::estimate_memory(run.plan({})).optimizer);
  };
  const double wide = optimizer_bytes(run_of("AdamW")), narrow = optimizer_bytes(run_of());
  // Two codes and two shares of a scale for each weight, and the largest parameter in fp32.
  EXPECT_LT(narrow, 1.05 * (wide * (2 + 8.0 / 256) / 8 + 8.0 * 4 * 256 * 256));
}

/// With this, every parameter whose size is a multiple of 128 is in four bits.
const char* const kAllInFour = R"(, "min_4bit_size": 1)";

TEST(FourBits, RanksTimesAccumulationGiveTheSameBits) {
  const TinyRun run = run_of("AdamW4bit", kAllInFour);
  const Trace one = run.train({.ranks = 1, .accumulation = 4, .stage = 0}, 5);
  for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                                                  {.ranks = 4, .accumulation = 1, .stage = 3}}) {
    SCOPED_TRACE(text_of(layout));
    expect_same_bits(one, run.train(layout, 5));
  }
}

TEST(FourBits, GoOnToTheBit) {
  const TinyRun run = run_of("AdamW4bit", kAllInFour);
  const Trace whole = run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 6);
  const files::TempDir half;
  (void)run.train({.ranks = 2, .accumulation = 2, .stage = 1}, 3, half.path());

  const Trace rest = run.train(
      {.ranks = 1, .accumulation = 4, .stage = 0}, 6, {}, *checkpoint::newest(half.path()));

  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
  EXPECT_EQ(rest.digest, whole.digest);
}

TEST(FourBits, LearnAsFp32DoesInAnEighthOfTheMemory) {
  const Layout layout = {.ranks = 1, .accumulation = 2};
  const Trace narrow = run_of("AdamW4bit", kAllInFour).train(layout, 30),
              wide = run_of("AdamW").train(layout, 30);

  EXPECT_NE(narrow.losses, wide.losses);
  EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 0.05 * wide.losses.back());
  const auto optimizer_bytes = [](TinyRun run) {
    run.set("model.hidden_size", "256").set("model.num_heads", "4");
    return static_cast<double>(planner::estimate_memory(run.plan({})).optimizer);
  };
  EXPECT_LT(optimizer_bytes(run_of("AdamW4bit")),
            1.05 * (optimizer_bytes(run_of("AdamW")) * (1 + 8.0 / 128) / 8 + 8.0 * 4 * 256 * 256));
}

}  // namespace
}  // namespace tessera::test
