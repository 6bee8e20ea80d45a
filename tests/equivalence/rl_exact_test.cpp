// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// With rl.parity exact, generation and training give one log-probability for one token, to the bit:
// in every family, whatever is generated together, on any ranks.
#include <string>
#include <vector>

#include "equivalence/family_layouts.h"
#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kSteps = 2;

/// Prompts of several lengths.
std::string some_prompts() {
  std::string out;
  for (int i = 0; i < 12; ++i)
    out += R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 4), 'a') + "\"}\n";
  return out;
}

/// The task's parameters; `more` are appended.
std::string exact(const std::string& more) {
  return R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}], "samples": 2, "max_new_tokens": 6,
             "temperature": 0.8, "parity": "exact")" +
         more + "}";
}

TinyRun policy_of(const FamilyRow& row, const std::string& rl, bool bf16) {
  TinyRun run = reinforcing(some_prompts(), rl);
  run.set("model", R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 16})")
      .set("model.family", '"' + row.family + '"')
      .set("bf16.enabled", bf16 ? "true" : "false");
  const json::Value keys = json::parse(row.model, row.name);
  for (const auto& [key, value] : keys.members())
    run.set("model." + key, key.ends_with("dropout") ? "0" : value.dump());
  return run;
}

TEST(RlExact, EveryFamilySamplesWhatItTrains) {
  for (const FamilyRow& row : family_rows()) {
    if (row.task != "pretrain") continue;
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(row.name + (bf16 ? " bf16" : " fp32"));

      auto metrics = metrics_of(policy_of(row, exact(""), bf16), {.accumulation = 2}, kSteps);

      // The first rollout is compared by a pass, and the training's own forward in every step.
      EXPECT_EQ(metrics["parity_max"], std::vector<double>(1, 0.0));
      EXPECT_EQ(metrics["moved"], std::vector<double>(kSteps, 0.0));
      EXPECT_EQ(metrics["clip_share"], std::vector<double>(kSteps, 0.0));
    }
  }
}

TEST(RlExact, HoldsForASupport) {
  auto metrics =
      metrics_of(policy_of(family_rows()[1], exact(R"(, "top_k": 60, "top_p": 0.8)"), true),
                 {.accumulation = 2},
                 kSteps);
  EXPECT_EQ(metrics["parity_max"], std::vector<double>(1, 0.0));
  EXPECT_EQ(metrics["moved"], std::vector<double>(kSteps, 0.0));
}

// Ranks that share layers add their parts in one order for every row, and the vocabulary is
// gathered.
TEST(RlExact, HoldsForRanksThatShareLayers) {
  for (const FamilyRow& row : {family_rows()[0], family_rows()[1]}) {
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(row.name + (bf16 ? " bf16" : " fp32"));
      auto metrics = metrics_of(
          policy_of(row, exact(""), bf16), {.ranks = 2, .accumulation = 2, .tensor = 2}, kSteps);
      EXPECT_EQ(metrics["parity_max"], std::vector<double>(1, 0.0));
      EXPECT_EQ(metrics["moved"], std::vector<double>(kSteps, 0.0));
    }
  }
}

// Experts too: nothing of a rollout's choices has to be replayed.
TEST(RlExact, HoldsForExpertsOnSeveralRanks) {
  for (const FamilyRow& row : family_rows()) {
    if (row.name != "mixtral") continue;
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE(row.name + (bf16 ? " bf16" : " fp32"));
      TinyRun run = policy_of(row, exact(""), bf16);
      run.set("parallel.expert", "2");
      auto metrics = metrics_of(run, {.ranks = 2, .accumulation = 2}, kSteps);
      EXPECT_EQ(metrics["parity_max"], std::vector<double>(1, 0.0));
      EXPECT_EQ(metrics["moved"], std::vector<double>(kSteps, 0.0));
    }
  }
}

// Without it the same texts differ: these tests can fail.
TEST(RlExact, TheUsualKernelsDiffer) {
  TinyRun run = policy_of(
      family_rows().front(), exact("").replace(exact("").find("exact"), 5, "measure"), true);
  EXPECT_GT(metrics_of(run, {.accumulation = 2}, 1)["parity_max"].at(0), 0.0);
}

TEST(RlExact, NothingDependsOnWhatIsGeneratedTogether) {
  const FamilyRow& row = family_rows()[1];
  for (const bool bf16 : {false, true}) {
    const auto trained = [&](const std::string& more, const Layout& layout) {
      return train(policy_of(row, exact(more), bf16), layout, {.steps = kSteps});
    };
    const Trace one = trained(R"(, "prompts_at_once": 1)", {.accumulation = 4});

    expect_same_bits(one, trained(R"(, "prompts_at_once": 16)", {.accumulation = 4}));
    expect_same_bits(one, trained("", {.ranks = 2, .accumulation = 2, .stage = 1}));
    expect_same_bits(one, trained("", {.ranks = 2, .accumulation = 2, .stage = 3}));
  }
}

// Shorter rows have less padding behind them.
TEST(RlExact, PaddingChangesNothing) {
  const FamilyRow& row = family_rows()[1];
  const auto losses = [&](const char* length) {
    TinyRun run = policy_of(row, exact(""), true);
    run.set("data.sequence_length", length);
    return train(run, {.accumulation = 4}, {.steps = 1}).losses;
  };
  EXPECT_EQ(losses("10"), losses("16"));
}

TEST(RlExact, SeveralUpdatesAndACriticLearnFromARollout) {
  const std::string more = R"(, "algorithm": "ppo", "iterations": 3, "critic": {"lr": 1e-3})";
  auto metrics =
      metrics_of(policy_of(family_rows()[1], exact(more), false), {.accumulation = 2}, 6);
  EXPECT_EQ(metrics["moved"].at(0), 0.0);
  EXPECT_GT(metrics["moved"].at(2), 0.0);  // the rate of the first update of a warm-up is 0
  EXPECT_EQ(metrics["moved"].at(3), 0.0);
  EXPECT_GT(metrics["moved"].at(4), 0.0);
}

TEST(RlExact, SaysThatDropoutIsInTheWay) {
  TinyRun run = policy_of(family_rows().front(), exact(""), false);
  run.set("model.dropout", "0.2");
  try {
    (void)metrics_of(run, {.accumulation = 2}, 1);
    FAIL() << "a difference was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    EXPECT_THAT(error.what(), testing::HasSubstr("rl.parity is exact"));
  }
}

}  // namespace
}  // namespace tessera::test
