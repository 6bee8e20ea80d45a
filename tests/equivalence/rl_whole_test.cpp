// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// Runs of 20 steps of reinforcement learning: the same bits on 1, 2 and 4 data-parallel ranks, in
// ZeRO stages 0 to 3, with a critic on ranks of its own, and resumed at any step.
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

constexpr std::int64_t kTwenty = 20;

/// Prompts of several lengths, and the task's parameters with `more`.
TinyRun twenty_step_policy(std::string more, const std::string& critic = "") {
  // A run without a critic gets no layout of one.
  if (!critic.empty() && more.find("ppo") != std::string::npos)
    more += R"(, "models": {"critic": )" + critic + "}";
  std::string prompts;
  for (int i = 0; i < 12; ++i)
    prompts += R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
  return reinforcing(
      prompts,
      R"({"max_new_tokens": 3, "rewards": [{"type": "regex", "pattern": "[@-~]"}], )" + more + "}");
}

class TwentySteps : public ::testing::TestWithParam<std::string> {};

TEST_P(TwentySteps, AreTheSameInAnyLayoutAndResumedAtAnyStep) {
  const TinyRun run = twenty_step_policy(GetParam());
  const files::TempDir folder;
  std::vector<std::int64_t> all;
  for (std::int64_t step = 1; step < kTwenty; ++step)
    all.push_back(step);
  const Trace whole = train(
      run,
      {.ranks = 1, .accumulation = 4, .stage = 0},
      {.steps = kTwenty, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = all});

  for (const Layout& layout : {Layout{.ranks = 2, .accumulation = 2, .stage = 1},
                               Layout{.ranks = 4, .accumulation = 1, .stage = 2}})
    expect_same_bits(whole, train(run, layout, {.steps = kTwenty}));
  const TinyRun apart = twenty_step_policy(GetParam(), R"({"ranks": [1, 2, 3], "zero_stage": 2})");
  const Layout four{.ranks = 4, .accumulation = 1, .stage = 3};
  expect_same_bits(whole, train(apart, four, {.steps = kTwenty}));

  int number = 0;
  for (const std::filesystem::path& saved : checkpoint::list(folder.path() / "c")) {
    const int ranks = 1 << number % 3;
    const Layout layout{.ranks = ranks, .accumulation = 4 / ranks, .stage = number++ % 4};
    const Trace after = train(ranks == 4 ? apart : run,
                              layout,
                              {.steps = kTwenty, .run_dir = folder.path(), .resume = saved});
    EXPECT_EQ(after.digest, whole.digest) << saved;
    EXPECT_EQ(after.metrics.back(), whole.metrics.back()) << saved;
  }
  EXPECT_EQ(number, kTwenty - 1);
}

INSTANTIATE_TEST_SUITE_P(
    Rl,
    TwentySteps,
    ::testing::Values(R"("algorithm": "grpo", "samples": 4, "kl": {"coefficient": 0.05})",
                      R"("preset": "dschat:ppo", "iterations": 2)"),
    [](const auto& info) { return info.index == 0 ? "Grpo" : "Ppo"; });

}  // namespace
}  // namespace tessera::test
