// SPDX-License-Identifier: Apache-2.0
// What tensor parallelism asks of a configuration, and what it saves.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/gpt2.h"
#include "tessera/planner/first_table.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Plan plan_of(const std::string& members, int ranks) {
  return make_plan(
      json::parse(R"({"data": {"train": "a.txt", "sequence_length": 128}, )" + members + "}",
                  "c.json"),
      ranks,
      "c.json");
}

std::string problems_of(const std::string& members, int ranks) {
  try {
    plan_of(members, ranks);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

// nano: 4 heads, 256 byte tokens.
const std::string kNano = R"("model": {"preset": "nano"}, "train_batch_size": 8, )";

TEST(TensorParallelOptions, FewerHeadsOrTokensThanRanksAreToldTogether) {
  EXPECT_THAT(
      problems_of(R"("model": {"preset": "nano", "vocab_size": 300}, "train_batch_size": 512,
                     "parallel": {"tensor": 512})",
                  512),
      AllOf(HasSubstr("512 ranks cannot share 4 heads"),
            HasSubstr("at most 4, or raise model.num_heads"),
            HasSubstr("512 ranks cannot share 300 tokens of the vocabulary"),
            Not(HasSubstr("features of the MLP"))));
}

TEST(TensorParallelOptions, HeadsThatDoNotDivideAreAllowed) {
  EXPECT_EQ(problems_of(kNano + R"("parallel": {"tensor": 3})", 3), "");
}

TEST(TensorParallelOptions, GridsThatDoNotFitAreToldWithTheNearest) {
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"mode": "2d", "size": 6}})", 6),
              AllOf(HasSubstr("6 ranks are no square"), HasSubstr("set it to 4 or 9")));
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"mode": "3d", "size": 4}})", 4),
              AllOf(HasSubstr("4 ranks are no cube"), HasSubstr("set it to 1 or 8")));
  EXPECT_THAT(
      problems_of(kNano + R"("parallel": {"tensor": {"mode": "2.5d", "size": 4, "depth": 2}})", 4),
      AllOf(HasSubstr("4 ranks are no 2 squares of one size"), HasSubstr("set it to 2 or 8")));
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"size": 4, "depth": 2}})", 4),
              HasSubstr("mode 1d has no depth"));
}

TEST(TensorParallelOptions, SharesOfTheTokensMustBeEven) {
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": 3, "sequence": true})", 3),
              AllOf(HasSubstr("data.sequence_length"),
                    HasSubstr("128 tokens cannot be shared evenly by 3 ranks"),
                    HasSubstr("set it to 126")));
}

TEST(TensorParallelOptions, RulesThatCompressWholeGradientsAreRefused) {
  EXPECT_THAT(
      problems_of(kNano + R"("optimizer": {"type": "OneBitAdam"}, "parallel": {"tensor": 2})", 2),
      AllOf(HasSubstr("optimizer.type"), HasSubstr("compresses whole gradients")));
}

TEST(TensorParallelOptions, OfTheProgramsOwnModelDoNotCutItsTokens) {
  const auto plan = [](const std::string& parallel) {
    return make_plan(json::parse(R"({"data": {"train": "a.txt", "sequence_length": 128},
                                     "train_batch_size": 8, "parallel": )" +
                                     parallel + "}",
                                 "c.json"),
                     2,
                     "c.json",
                     models::gpt2({}));
  };

  EXPECT_EQ(plan(R"({"tensor": 2})").data_ranks, 1);
  EXPECT_THROW(plan(R"({"tensor": 2, "sequence": true})"), Error);
}

TEST(TensorParallelOptions, SequenceAloneIsNoted) {
  EXPECT_THAT(plan_of(kNano + R"("parallel": {"sequence": true})", 1).notes,
              Contains(HasSubstr("parallel.sequence has no effect")));
}

TEST(TensorParallelPlan, TellsItsLayoutAndTheBatchOfWhatIsLeft) {
  const Plan plan = plan_of(
      kNano + R"("parallel": {"tensor": 2, "sequence": true}, "gradient_accumulation_steps": 2)",
      4);

  EXPECT_EQ(plan.micro_batch, 2);
  EXPECT_THAT(first_table(plan, {}),
              Contains(AllOf(HasSubstr("4 ranks"),
                             HasSubstr("data parallel 2, tensor parallel 2 (1d, sequence)"))));
}

// nano: 128 channels, 512 features, 128 positions; 12 C^2 of a layer are cut, and 7 C of its 13 C
// values in vectors: biases of q, k, v and of the features.
TEST(TensorParallelMemory, IsDividedWhereParametersAreCut) {
  constexpr std::int64_t kC = 128;
  constexpr std::int64_t kWhole = 4 * 6 * kC + 128 * kC + 2 * kC;
  constexpr std::int64_t kCut = 4 * (12 * kC * kC + 7 * kC) + 256 * kC;

  const MemoryEstimate need = estimate_memory(plan_of(kNano + R"("parallel": {"tensor": 2})", 2));

  EXPECT_EQ(need.parameters, 4 * (kWhole + kCut / 2));
  EXPECT_EQ(need.optimizer, 8 * (kWhole + kCut / 2));
  EXPECT_EQ(checkpoint_bytes(plan_of(kNano + R"("parallel": {"tensor": 2})", 2)),
            12 * (kWhole + kCut));
}

TEST(TensorParallelMemory, OfActivationsShrinksAndSequenceShrinksItFurther) {
  const auto activations = [](const std::string& parallel, int ranks) {
    return estimate_memory(
               plan_of(
                   R"("model": {"preset": "nano"}, "train_micro_batch_size_per_gpu": 4)" + parallel,
                   ranks))
        .activations;
  };
  const std::int64_t one = activations("", 1);
  const std::int64_t tensor = activations(R"(, "parallel": {"tensor": 4})", 4);
  const std::int64_t sequence = activations(R"(, "parallel": {"tensor": 4, "sequence": true})", 4);

  EXPECT_LT(tensor, one);
  EXPECT_LT(sequence, tensor);
}

}  // namespace
}  // namespace tessera::planner
