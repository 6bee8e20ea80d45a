// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Pretraining texts beside the completions of a policy.
#include <fstream>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kPtxSteps = 4;

/// A text, and a policy that learns it besides completions of up to four tokens.
struct WithTexts {
  files::TempDir folder;
  std::filesystem::path texts = folder.path() / "texts.txt";
  WithTexts() {
    std::ofstream out(texts);
    for (int i = 0; i < 300; ++i)
      out << "line " << i * 7919 % 1000 << " of a text\n";
  }
  [[nodiscard]] TinyRun policy(const std::string& rewards, const std::string& ptx) const {
    std::string prompts;
    for (int i = 0; i < 12; ++i)
      prompts +=
          R"({"prompt": ")" + std::string(static_cast<std::size_t>(1 + i % 3), 'a') + "\"}\n";
    return reinforcing(prompts,
                       R"({"samples": 2, "max_new_tokens": 4, "rewards": )" + rewards +
                           R"(, "ptx": {"data": [")" + texts.string() + "\"]" + ptx + "}}");
  }
};

const char* const kRewardedLetters = R"([{"type": "regex", "pattern": "[@-~]"}])";
/// Every completion earns the same, so that its advantage is 0.
const char* const kEqualRewards = R"([{"type": "length", "max": 100}])";

TEST(RlPtx, IsTheSameOnAnyRanksAndAfterAnyStep) {
  const WithTexts with;
  // More texts than completions, and a last micro-batch that is not full.
  const TinyRun run = with.policy(kRewardedLetters, R"(, "samples": 11, "coefficient": 0.5)");
  const files::TempDir folder;
  const Trace one = train(
      run,
      {.ranks = 1, .accumulation = 4, .stage = 0},
      {.steps = kPtxSteps, .run_dir = folder.path(), .root = folder.path() / "c", .save_at = {2}});

  expect_same_bits(one,
                   train(run, {.ranks = 2, .accumulation = 2, .stage = 1}, {.steps = kPtxSteps}));
  expect_same_bits(one,
                   train(run, {.ranks = 4, .accumulation = 1, .stage = 3}, {.steps = kPtxSteps}));
  const Trace after = train(run,
                            {.ranks = 2, .accumulation = 2, .stage = 2},
                            {.steps = kPtxSteps,
                             .run_dir = folder.path(),
                             .resume = *checkpoint::newest(folder.path() / "c")});
  EXPECT_EQ(after.digest, one.digest);
}

// If completions teach nothing, only the pretraining remains.
TEST(RlPtx, LearnsTextsAsPretrainingDoes) {
  const WithTexts with;
  const Layout layout{.ranks = 1, .accumulation = 4};
  TinyRun pretraining;
  pretraining.set("data.train", "[\"" + with.texts.string() + "\"]")
      .set("data.validation_fraction", "0")
      .set("eval.every", "0")
      .set("model.dropout", "0");
  const std::vector<double> expected = train(pretraining, layout, {.steps = kPtxSteps}).losses;

  auto metrics = metrics_of(with.policy(kEqualRewards, R"(, "coefficient": 1)"), layout, kPtxSteps);

  constexpr double kRounding = 1e-5;  // the loss is computed in fp64 here, and in fp32 there
  ASSERT_EQ(metrics["ptx"].size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(metrics["ptx"][i], expected[i], kRounding * expected[i]) << i;
  EXPECT_NE(expected.front(), expected.back());
}

// The loss of a step is that of the completions and `coefficient` times that of the texts.
TEST(RlPtx, WeighsTheLossOfTexts) {
  const WithTexts with;
  const Layout layout{.ranks = 1, .accumulation = 4};
  const TinyRun run = with.policy(kRewardedLetters, R"(, "coefficient": 3)");
  const Trace trace = train(run, layout, {.steps = 1});
  auto metrics = metrics_of(run, layout, 1);

  EXPECT_NEAR(trace.losses.at(0), metrics["loss"].at(0) + 3 * metrics["ptx"].at(0), 1e-9);
  EXPECT_GT(metrics["ptx"].at(0), 1.0);
}

TEST(RlPtx, RefusesAFactorWithoutTexts) {
  try {
    (void)reinforcing("{\"prompt\": \"a\"}\n",
                      R"({"samples": 2, "rewards": [{"type": "length", "max": 3}],
                          "ptx": {"coefficient": 2}})")
        .plan({});
    FAIL() << "a factor of nothing was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("ptx.coefficient"));
  }
}

}  // namespace
}  // namespace tessera::test
