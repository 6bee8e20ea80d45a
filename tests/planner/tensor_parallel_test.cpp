// SPDX-License-Identifier: Apache-2.0
// Requirements of tensor parallelism on a configuration, and its savings.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/report/first_table.h"

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

TEST(TensorParallelOptions, FewerHeadsOrTokensThanRanksAreReportedTogether) {
  EXPECT_THAT(
      problems_of(R"("model": {"preset": "nano", "vocab_size": 300}, "train_batch_size": 512,
                     "parallel": {"tensor": 512})",
                  512),
      AllOf(HasSubstr("512 ranks cannot share 4 heads"),
            HasSubstr("at most 4, or raise model.num_heads"),
            HasSubstr("512 ranks cannot share 300 tokens of the vocabulary"),
            Not(HasSubstr("features of the MLP"))));
}

TEST(TensorParallelOptions, FewerHeadsOfKeysThanRanksAreReportedUnlessTheyDivideThem) {
  const auto problems_on = [](int ranks) {
    return problems_of(
        R"("model": {"preset": "nano", "num_kv_heads": 2}, "train_batch_size": 24, "parallel": {"tensor": )" +
            std::to_string(ranks) + "}",
        ranks);
  };

  EXPECT_THAT(problems_on(3),
              AllOf(HasSubstr("3 ranks cannot share 2 heads of keys and values"),
                    HasSubstr("at most 2, or raise model.num_kv_heads")));
  EXPECT_EQ(problems_on(4), "");
  EXPECT_THAT(problems_on(8), HasSubstr("8 ranks cannot share"));
}

TEST(TensorParallelOptions, HeadsThatDoNotDivideAreAllowed) {
  EXPECT_EQ(problems_of(kNano + R"("parallel": {"tensor": 3})", 3), "");
}

TEST(TensorParallelOptions, GridsThatDoNotFitAreReportedWithTheNearest) {
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"mode": "2d", "size": 6}})", 6),
              AllOf(HasSubstr("6 ranks are not a square"), HasSubstr("set it to 4 or 9")));
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"mode": "3d", "size": 4}})", 4),
              AllOf(HasSubstr("4 ranks are not a cube"), HasSubstr("set it to 1 or 8")));
  EXPECT_THAT(
      problems_of(kNano + R"("parallel": {"tensor": {"mode": "2.5d", "size": 4, "depth": 2}})", 4),
      AllOf(HasSubstr("4 ranks are not 2 squares of one size"), HasSubstr("set it to 2 or 8")));
  EXPECT_THAT(problems_of(kNano + R"("parallel": {"tensor": {"size": 4, "depth": 2}})", 4),
              HasSubstr("mode 1d has no depth"));
}

TEST(TensorParallelOptions, GridsThatFitAreArrangedAsTheirModeSays) {
  const auto mesh = [](const std::string& tensor, int ranks) {
    return plan_of(kNano + R"("parallel": {"tensor": )" + tensor + "}", ranks).mesh();
  };
  const mesh::Mesh square = mesh(R"({"mode": "2d", "size": 4})", 8),
                   squares = mesh(R"({"mode": "2.5d", "size": 8, "depth": 2})", 8),
                   cube = mesh(R"({"mode": "3d", "size": 8})", 8);

  EXPECT_EQ(square.size(mesh::AxisSet::dp()), 2);
  EXPECT_EQ(square.size(mesh::Axis::TpDepth), 1);
  EXPECT_EQ(square.size(mesh::Axis::TpRow), 2);
  EXPECT_EQ(square.size(mesh::Axis::TpCol), 2);
  for (const mesh::Mesh& three : {squares, cube}) {
    EXPECT_EQ(three.size(mesh::Axis::TpDepth), 2);
    EXPECT_EQ(three.size(mesh::Axis::TpRow), 2);
    EXPECT_EQ(three.size(mesh::Axis::TpCol), 2);
  }
}

// 16 x 16 ranks, and 4 heads.
TEST(TensorParallelOptions, GridsTooLargeForTheModelAreReportedWithTheNearest) {
  EXPECT_THAT(problems_of(R"("model": {"preset": "nano"}, "train_batch_size": 16,
                     "parallel": {"tensor": {"mode": "2d", "size": 256}})",
                          256),
              AllOf(HasSubstr("16 ranks cannot share 4 heads"),
                    HasSubstr("set it to at most 16, or raise model.num_heads"),
                    Not(HasSubstr("features of the MLP"))));
  // 10 x 10 x 10 ranks split 64 channels into 100 parts; 8 x 8 ranks split them into 64.
  EXPECT_THAT(
      problems_of(R"("model": {"preset": "nano", "hidden_size": 64}, "train_batch_size": 100,
                     "parallel": {"tensor": {"mode": "3d", "size": 1000}})",
                  1000),
      AllOf(HasSubstr("100 ranks cannot share 64 channels"), HasSubstr("set it to at most 512")));
}

TEST(TensorParallelOptions, OnAGridEveryRankNeedsASampleAndAnEqualPartOfTheChannels) {
  const std::string model = R"("model": {"preset": "nano", "hidden_size": 132, "num_heads": 4}, )";
  EXPECT_THAT(problems_of(model + R"("train_micro_batch_size_per_gpu": 2,
                                     "parallel": {"tensor": {"mode": "3d", "size": 8}})",
                          8),
              AllOf(HasSubstr("a micro-batch of 2 sequences cannot be shared by 4 ranks"),
                    HasSubstr("set train_micro_batch_size_per_gpu to 4")));
  EXPECT_THAT(problems_of(R"("model": {"preset": "nano"}, "train_batch_size": 9,
                             "parallel": {"tensor": {"mode": "2d", "size": 9}})",
                          9),
              AllOf(HasSubstr("128 channels cannot be cut into 3 equal parts"),
                    HasSubstr("set it to 120 or 132")));
}

TEST(TensorParallelOptions, OnAGridTokensStayTogetherAndModelsAreOurs) {
  EXPECT_THAT(
      problems_of(kNano + R"("parallel": {"tensor": {"mode": "2d", "size": 4}, "sequence": true})",
                  4),
      AllOf(HasSubstr("parallel.sequence"), HasSubstr("mode 2d cuts samples and channels")));
  try {
    make_plan(json::parse(R"({"data": {"train": "a.txt", "sequence_length": 128},
                              "train_batch_size": 8,
                              "parallel": {"tensor": {"mode": "2d", "size": 4}}})",
                          "c.json"),
              4,
              "c.json",
              models::gpt2({}));
    FAIL() << "the program's own model was put on a grid";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("the program's own model may need all of them"));
  }
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

TEST(TensorParallelOptions, OfTheProgramsOwnModelCutTokensOfBlocksThatWorkByToken) {
  const auto plan = [](const std::string& parallel) {
    return make_plan(json::parse(R"({"data": {"train": "a.txt", "sequence_length": 128},
                                     "train_batch_size": 8, "parallel": )" +
                                     parallel + "}",
                                 "c.json"),
                     2,
                     "c.json",
                     models::gpt2({}));
  };

  EXPECT_EQ(plan(R"({"tensor": 2})").layout().data_ranks, 1);
  EXPECT_TRUE(plan(R"({"tensor": 2, "sequence": true})").layout().sequence);
}

TEST(TensorParallelOptions, SequenceAloneIsNoted) {
  EXPECT_THAT(plan_of(kNano + R"("parallel": {"sequence": true})", 1).notes(),
              Contains(HasSubstr("parallel.sequence has no effect")));
}

TEST(TensorParallelPlan, ReportsItsLayoutAndTheBatchOfWhatIsLeft) {
  const Plan plan = plan_of(
      kNano + R"("parallel": {"tensor": 2, "sequence": true}, "gradient_accumulation_steps": 2)",
      4);

  EXPECT_EQ(plan.layout().micro_batch, 2);
  EXPECT_THAT(report::first_table(PlanWithData(plan, {}), {}),
              Contains(AllOf(HasSubstr("4 ranks"),
                             HasSubstr("data parallel 2, tensor parallel 2 (1d, sequence)"))));
}

// nano: 128 channels, 512 features, 128 positions. 12 C^2 values of a layer are sharded, and 7 C of
// its 13 C values in vectors: biases of q, k, v and of the features.
TEST(TensorParallelMemory, IsDividedWhereParametersAreCut) {
  constexpr std::int64_t kC = 128;
  constexpr std::int64_t kWhole = 4 * 6 * kC + 128 * kC + 2 * kC;
  constexpr std::int64_t kCut = 4 * (12 * kC * kC + 7 * kC) + 256 * kC;

  const MemoryEstimate need = estimate_memory(plan_of(kNano + R"("parallel": {"tensor": 2})", 2));

  // Each of the 8 vectors of a layer and the 2 of the last norm fills a chunk of the flat buffer.
  constexpr std::int64_t kVectors = (4 * 8 + 2) * 1024;
  EXPECT_EQ(need.parameters, 4 * ((4 * 12 * kC * kC + 256 * kC) / 2 + 128 * kC + kVectors));
  EXPECT_EQ(need.optimizer, 8 * (kWhole + kCut / 2));
  EXPECT_EQ(checkpoint_bytes(plan_of(kNano + R"("parallel": {"tensor": 2})", 2)),
            12 * (kWhole + kCut));
}

// Matrices and tables are distributed over all ranks of a square or cube, vectors over one side,
// where a part of a vector needs a chunk just as the whole does.
TEST(TensorParallelMemory, OnAGridIsDividedByItsRanks) {
  constexpr std::int64_t kC = 128;
  constexpr std::int64_t kMatrices = 4 * 12 * kC * kC + (256 + 128) * kC;
  constexpr std::int64_t kVectors = (4 * 8 + 2) * 1024;  // a chunk for each part of a vector
  const auto parameters = [](const std::string& tensor, int ranks) {
    return estimate_memory(plan_of(kNano + R"("parallel": {"tensor": )" + tensor + "}", ranks))
        .parameters;
  };

  EXPECT_EQ(parameters(R"({"mode": "2d", "size": 4})", 4), 4 * (kMatrices / 4 + kVectors));
  EXPECT_EQ(parameters(R"({"mode": "2.5d", "size": 8, "depth": 2})", 8),
            4 * (kMatrices / 4 + kVectors));
  EXPECT_EQ(parameters(R"({"mode": "3d", "size": 8})", 8), 4 * (kMatrices / 8 + kVectors));
}

TEST(TensorParallelMemory, OfActivationsOnAGridShrinks) {
  const auto activations = [](const std::string& parallel, int ranks) {
    return estimate_memory(
               plan_of(
                   R"("model": {"preset": "nano"}, "train_micro_batch_size_per_gpu": 8)" + parallel,
                   ranks))
        .activations;
  };
  const std::int64_t one = activations("", 1);
  const std::int64_t square =
      activations(R"(, "parallel": {"tensor": {"mode": "2d", "size": 4}})", 4);
  const std::int64_t cube =
      activations(R"(, "parallel": {"tensor": {"mode": "3d", "size": 8}})", 8);

  EXPECT_LT(square, one / 2);
  EXPECT_LT(cube, square);
}

// With `sequence`, activations between layers are shares, and the inputs of layers are kept
// gathered.
TEST(TensorParallelMemory, OfActivationsShrinksWithAndWithoutSequence) {
  const auto activations = [](const std::string& parallel, int ranks) {
    const MemoryEstimate need = estimate_memory(plan_of(
        R"("model": {"preset": "nano", "num_layers": 4}, "train_micro_batch_size_per_gpu": 4)" +
            parallel,
        ranks));
    EXPECT_EQ(need.unknown, "");
    return need.activations;
  };
  const std::int64_t one = activations("", 1);
  const std::int64_t tensor = activations(R"(, "parallel": {"tensor": 4})", 4);
  const std::int64_t sequence = activations(R"(, "parallel": {"tensor": 4, "sequence": true})", 4);

  EXPECT_LT(tensor, one);
  EXPECT_LT(sequence, one);
}

}  // namespace
}  // namespace tessera::planner
