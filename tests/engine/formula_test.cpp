// SPDX-License-Identifier: Apache-2.0
// The formulas that tessera config explain prints: every algorithm, preset and loss has one with
// the numbers of its configuration.
#include "tessera/engine/formula.h"

#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/losses/cpo_orpo.h"
#include "tessera/losses/dpo.h"
#include "tessera/losses/kl.h"
#include "tessera/losses/kto.h"
#include "tessera/losses/policy.h"
#include "tessera/report/explain.h"
#include "tessera/rlhf/estimators.h"
#include "tessera/tasks/rl/options.h"

namespace tessera::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> formula(const std::string& task) {
  const std::string text =
      R"({"data": {"train": "a.jsonl", "sequence_length": 256}, )" + task + "}";
  return report::explain_config(json::parse(text, "a.json"), 1, "a.json", formula_of).formula;
}
std::vector<std::string> rl(const std::string& options) {
  return formula(
      R"("task": "rl", "rl": {"rewards": [{"type": "number"}, {"type": "length", "max": 9, )"
      R"("weight": 0.2}], )" +
      options + "}");
}
std::vector<std::string> prefer(const std::string& method, const std::string& loss) {
  return formula(fmt::format(
      R"("task": "prefer", "prefer": {{"method": "{}", "loss": {{{}}}}})", method, loss));
}

TEST(Formula, OfGrpoIsThePaperSWithTheRunSNumbers) {
  EXPECT_THAT(
      rl(R"("algorithm": "grpo", "samples": 4, "temperature": 0.7, "loss": {"epsilon_low": 0.1},
            "kl": {"coefficient": 0.04})"),
      ElementsAre("loss = the mean over completions of the means over their tokens of L",
                  "L = -min(rho A, clip(rho, 1 - 0.1, 1 + 0.2) A) + 0.04 KL",
                  "rho = p / p_old of the token",
                  "KL = e^-d + d - 1 (k3), d = log p - log p_ref of the token",
                  "p = softmax(logits / 0.7)",
                  "A = (Q - mean of Q of the 4 completions of the prompt) / (deviation of Q of the "
                  "prompt + 1e-04)",
                  "Q = R",
                  "R = 1 number + 0.2 length",
                  "rollout: 4 completions of each prompt, 1 update of each rollout"));
}

TEST(Formula, OfDeepSpeedChatSPpoNamesItsClippedScoreAndItsDivergence) {
  EXPECT_THAT(
      rl(R"("preset": "dschat:ppo", "mini_batches": 2)"),
      ElementsAre("loss = the mean over all tokens of L",
                  "L = -min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A)",
                  "rho = p / p_old of the token",
                  "p = softmax(logits / 1)",
                  "A[t] = r[t] + 1 V[t+1] - V[t] + 1 x 0.95 A[t+1]",
                  "r[t] = -0.1 KL, and R more at the position after the answer",
                  "V = the critic's value with which the rollout was judged",
                  "R = clip(1 number + 0.2 length, -5, 5)",
                  "KL = d (k1), d = log p_old - log p_ref of the token",
                  "critic: 1/2 the mean over all tokens of max((V - R)^2, (clip(V, V_old - 0.2, "
                  "V_old + 0.2) - R)^2), R = A + V",
                  "rollout: 1 completion of each prompt, 2 updates of each rollout"));
}

TEST(Formula, OfPresetsOfOneNameDiffersWhereTheyDo) {
  const auto trl = rl(R"("preset": "trl:grpo")"), verl = rl(R"("preset": "verl:grpo")"),
             paper = rl(R"("algorithm": "grpo")"), dapo = rl(R"("preset": "dapo")");

  EXPECT_THAT(paper, Contains("L = -min(rho A, clip(rho, 1 - 0.2, 1 + 0.2) A)"));
  EXPECT_THAT(paper, Contains(HasSubstr("means over their tokens")));
  EXPECT_THAT(trl, Contains("loss = the mean over all tokens of L"));
  EXPECT_THAT(trl, Contains(HasSubstr("deviation of Q of the prompt + 1e-04")));
  EXPECT_THAT(trl, Not(Contains(HasSubstr("KL"))));
  EXPECT_THAT(verl, Contains(HasSubstr("deviation of Q of the prompt + 1e-06")));
  EXPECT_THAT(verl, Contains("L = -min(min(rho, 3) A, clip(rho, 1 - 0.2, 1 + 0.2) A) + 0.001 KL"));
  EXPECT_THAT(dapo, Contains(HasSubstr("clip(rho, 1 - 0.2, 1 + 0.28)")));
  EXPECT_THAT(
      dapo,
      Contains("rollout: 16 completions of each prompt, 1 update of each rollout; groups of "
               "equal rewards are replaced up to 10 times"));
}

TEST(Formula, OfEveryAlgorithmAndPresetIsItsOwn) {
  std::set<std::vector<std::string>> found;
  std::size_t count = 0;
  for (const char* key : {"algorithm", "preset"}) {
    const auto names = std::string(key) == "algorithm" ? tasks::rl_algorithms().names()
                                                       : tasks::rl_presets().names();
    for (const std::string& name : names) {
      const auto lines = rl(fmt::format(R"("{}": "{}")", key, name));
      ASSERT_THAT(lines, Not(IsEmpty())) << name;
      found.insert(lines);
      ++count;
    }
  }
  EXPECT_EQ(found.size(), count);
}

TEST(Formula, OfTheOtherAlgorithmsHasTheirNumbers) {
  EXPECT_THAT(rl(R"("algorithm": "dr_grpo", "max_new_tokens": 99)"),
              Contains("loss = the sum over all tokens of L / (99 x the number of completions)"));
  EXPECT_THAT(rl(R"("algorithm": "dr_grpo")"),
              Contains("A = Q - mean of Q of the 8 completions of the prompt"));
  EXPECT_THAT(rl(R"("algorithm": "gspo")"),
              Contains("L = -min(rho A, clip(rho, 1 - 3e-04, 1 + 4e-04) A)"));
  EXPECT_THAT(rl(R"("algorithm": "gspo")"),
              Contains("rho = e^(the mean over the completion's tokens of log p - log p_old)"));
  EXPECT_THAT(rl(R"("algorithm": "rloo", "samples": 5)"),
              Contains("A = Q - mean of Q of the other 4 completions of the prompt"));
  EXPECT_THAT(rl(R"("algorithm": "rloo")"), Contains("Q = R - 0.05 x the sum over tokens of KL"));
  EXPECT_THAT(rl(R"("algorithm": "reinforce++", "advantage": {"gamma": 0.9})"),
              Contains("A[t] = r[t] + 0.9 A[t+1]"));
  EXPECT_THAT(rl(R"("algorithm": "reinforce++")"),
              Contains("r[t] = -0.01 KL, and R more at the last token"));
  EXPECT_THAT(rl(R"("algorithm": "ppo", "critic": {"clip_range": 0.3})"),
              Contains(HasSubstr("V_old - 0.3, V_old + 0.3")));
  EXPECT_THAT(rl(R"("algorithm": "ppo")"), Contains(HasSubstr("A is whitened")));
}

TEST(Formula, HasWhatOptionsAdd) {
  const auto lines = rl(R"("algorithm": "ppo", "kl": {"target": 6, "horizon": 77},
                           "entropy_coefficient": 0.01, "ptx": {"data": "texts.txt"},
                           "top_k": 40, "truncated": "mask")");
  EXPECT_THAT(lines,
              Contains("the coefficient of KL follows a divergence of 6 a completion, within 77 "
                       "completions"));
  EXPECT_THAT(lines, Contains(HasSubstr(" - 0.01 H")));
  EXPECT_THAT(lines,
              Contains(HasSubstr(" + 27.8 x the mean over the tokens of pretraining texts")));
  EXPECT_THAT(lines, Contains("p = softmax(logits / 1), top_k 40"));
  EXPECT_THAT(lines, Contains(HasSubstr("completions of 64 tokens without an end are left out")));
  EXPECT_THAT(rl(R"("loss": {"type": "sapo"})"), Contains(HasSubstr("t = 1 for A > 0, else 1.05")));
  EXPECT_THAT(rl(R"("loss": {"type": "cispo", "epsilon_high": 5})"),
              Contains(HasSubstr("-min(rho, 5) A log p")));
  EXPECT_THAT(rl(R"("loss": {"type": "vespo"})"), Contains(HasSubstr("k = 2, l = 3 for A >= 0")));
  EXPECT_THAT(rl(R"("loss": {"type": "luspo"})"), Contains(HasSubstr("sums over their tokens")));
  EXPECT_THAT(rl(R"("advantage": {"sum": "normalize_then_sum", "epsilon": 0.5})"),
              Contains("A = (S - mean of S) / (deviation of S + 0.5) over the rollout"));
}

TEST(Formula, OfPairsIsThatOfEachLoss) {
  std::set<std::string> found;
  for (const std::string& name : losses::pair_losses().names()) {
    if (name == "sft") continue;  // it compares nothing, and is added to another one
    const auto lines =
        prefer("dpo", fmt::format(R"("type": "{}", "beta": 0.25, "label_smoothing": 0.125)", name));
    ASSERT_THAT(lines, Contains(HasSubstr("0.25"))) << name;
    found.insert(lines.front());
    EXPECT_EQ(lines.front().find("0.125") != std::string::npos,
              losses::pair_losses().get(name).needs_smoothing || name == "cdpo" ||
                  name == "robust" || name == "aot" || name == "aot_unpaired")
        << name;
  }
  EXPECT_EQ(found.size(), losses::pair_losses().names().size() - 1);
  EXPECT_THAT(prefer("dpo", R"("type": ["sigmoid", "sft"], "weights": [1, 0.5],
                               "divergence": "alpha_divergence", "divergence_alpha": 0.6,
                               "tail_alpha": 0.3, "on_policy_weights": true)"),
              ElementsAre("loss = the mean over pairs of w x -log s(0.1 (sw - sl)) + the mean over "
                          "tokens of 0.5 (-log p of the chosen completion)",
                          losses::kPairSymbols,
                          "score of a ratio l: (e^((a - 1) l) - 1) / (a - 1) (divergence "
                          "alpha_divergence), a = 0.6",
                          "tokens beyond the length of the shorter completion count 0.3",
                          "w = e^(the mean over tokens of log p - log(the sum of p^2)) of both "
                          "completions"));
}

TEST(Formula, OfPreferencesWithoutAReferenceHasTheirNumbers) {
  EXPECT_THAT(prefer("simpo", R"("beta": 2, "gamma": 1.4)"),
              ElementsAre("loss = the mean over pairs of -log s(2 m - 1.4)",
                          "m = log p(chosen) - log p(rejected)",
                          "log p is the mean over the tokens of a completion"));
  EXPECT_THAT(prefer("cpo", R"("type": "hinge", "alpha": 0.5, "likelihood_weight": 3)"),
              ElementsAre("loss = the mean over pairs of max(0, 1 - 0.1 m) + 3 x the mean over "
                          "tokens of -log p of the chosen completion",
                          "m = (p(rejected)^-0.5 - p(chosen)^-0.5) / 0.5",
                          "log p is the sum over the tokens of a completion"));
  EXPECT_THAT(prefer("orpo", R"("beta": 0.3)"), Contains(HasSubstr("-0.3 log s(log(odds(chosen)")));
  EXPECT_THAT(prefer("kto", R"("beta": 0.3, "undesirable_weight": 1.5)"),
              ElementsAre("loss = the mean over completions of w L, L = 1 - s(0.3 (l - z)) if "
                          "desirable, 1 - s(0.3 (z - l)) if not",
                          "w = 1 if desirable, 1.5 if not",
                          "l = log(policy / reference) of a completion, s the logistic function",
                          "z = max(0, the mean of l over mismatched completions of the "
                          "micro-batch)"));
  EXPECT_THAT(prefer("kto", R"("type": "apo_zero_unpaired")"), Not(Contains(HasSubstr("z = max"))));
}

TEST(Formula, OfARewardModelHasItsCentering) {
  EXPECT_THAT(
      formula(R"("task": "reward", "reward": {"centering": 0.01})"),
      ElementsAre("loss = the mean over pairs of -log sigmoid(chosen - rejected - margin) + "
                  "0.01 (chosen + rejected)^2"));
  EXPECT_THAT(formula(R"("task": "reward", "reward": {"compare": "tokens"})"),
              ElementsAre("loss = the mean over pairs of the mean of -log sigmoid(chosen[t] - "
                          "rejected[t]) over the tokens t from the first difference to the end of "
                          "the longer sequence"));
}

TEST(Formula, IsNotGivenForOtherTasksAndWrongOptions) {
  EXPECT_THAT(formula(R"("task": "pretrain")"), IsEmpty());
  EXPECT_THAT(rl(R"("algorithm": "grpo", "samples": 1)"), IsEmpty());
  EXPECT_THAT(prefer("dpo", R"("type": "sigmod")"), IsEmpty());
}

}  // namespace
}  // namespace tessera::engine
