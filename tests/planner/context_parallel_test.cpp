// SPDX-License-Identifier: Apache-2.0
// Requirements of context parallelism on a configuration, and its savings.
#include <memory>
#include <string>
#include <utility>

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

Plan plan_of(const std::string& members, int ranks) {
  return make_plan(json::parse("{" + members + "}", "c.json"), ranks, "c.json");
}

std::string problems_of(const std::string& members, int ranks) {
  try {
    plan_of(members, ranks);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

// nano: 4 heads.
std::string nano(int length) {
  return R"("model": {"preset": "nano"}, "train_batch_size": 8, "data": {"train": "a.txt",
            "sequence_length": )" +
         std::to_string(length) + "}, ";
}

TEST(ContextParallelOptions, ARingNeedsTwoChunksARank) {
  EXPECT_EQ(problems_of(nano(120) + R"("parallel": {"context": 2})", 2), "");
  EXPECT_THAT(problems_of(nano(122) + R"("parallel": {"context": 2})", 2),
              AllOf(HasSubstr("data.sequence_length"),
                    HasSubstr("122 tokens cannot be cut into 4 chunks, two a rank"),
                    HasSubstr("set it to 120")));
  EXPECT_THAT(problems_of(nano(4) + R"("parallel": {"context": 4})", 4),
              AllOf(HasSubstr("4 tokens cannot be cut into 8 chunks"), HasSubstr("set it to 8")));
}

TEST(ContextParallelOptions, UlyssesNeedsAChunkAndWholeHeadsARank) {
  const std::string ulysses = R"("parallel": {"context": {"mode": "ulysses", "size": )";
  EXPECT_EQ(problems_of(nano(122) + ulysses + "2}}", 2), "");
  EXPECT_THAT(problems_of(nano(121) + ulysses + "3}}", 3),
              AllOf(HasSubstr("121 tokens cannot be cut into 3 chunks"),
                    HasSubstr("set it to 120"),
                    HasSubstr("4 heads cannot be shared evenly by tensor 1 x context 3 = 3 ranks"),
                    HasSubstr("set it to \"ring\", or model.num_heads to a multiple of 3")));
}

TEST(ContextParallelOptions, TensorParallelRanksTakeTheirShareOfBoth) {
  EXPECT_EQ(problems_of(nano(120) + R"("parallel": {"context": 2, "tensor": 2})", 4), "");
  EXPECT_THAT(
      problems_of(
          nano(120) + R"("parallel": {"context": {"size": 4, "mode": "ulysses"}, "tensor": 2})", 8),
      HasSubstr("4 heads cannot be shared evenly by tensor 2 x context 4 = 8 ranks"));
  EXPECT_THAT(
      problems_of(nano(126) +
                      R"("parallel": {"context": {"size": 2, "mode": "ulysses"}, "tensor": 2,
                                      "sequence": true})",
                  4),
      AllOf(HasSubstr("shared by 2 ranks once more (parallel.sequence)"),
            HasSubstr("set it to 124")));
}

// On a grid, heads are distributed over one side.
TEST(ContextParallelOptions, OnAGridHeadsAreDividedByItsSide) {
  const auto problems = [](const std::string& context, const std::string& tensor, int ranks) {
    return problems_of(
        nano(128) + R"("parallel": {"context": )" + context + R"(, "tensor": )" + tensor + "}",
        ranks);
  };
  const std::string two = R"({"mode": "ulysses", "size": 2})",
                    four = R"({"mode": "ulysses", "size": 4})";
  const std::string square = R"({"mode": "2d", "size": 4})",
                    squares = R"({"mode": "2.5d", "size": 2, "depth": 2})",
                    cube = R"({"mode": "3d", "size": 8})";

  for (const std::string& tensor : {square, cube}) {
    const int ranks = tensor == cube ? 8 : 4;
    EXPECT_EQ(problems("4", tensor, 4 * ranks), "");
    EXPECT_EQ(problems(two, tensor, 2 * ranks), "");
    EXPECT_THAT(problems(four, tensor, 4 * ranks),
                AllOf(HasSubstr("4 heads cannot be shared evenly by tensor 2"),
                      HasSubstr("x context 4 = 8 ranks")));
  }
  EXPECT_EQ(problems(four, squares, 8), "");
}

TEST(ContextParallelOptions, RulesThatCompressGradientsAreRefused) {
  EXPECT_THAT(
      problems_of(nano(128) + R"("optimizer": {"type": "OneBitAdam"}, "parallel": {"context": 2})",
                  2),
      AllOf(HasSubstr("optimizer.type"), HasSubstr("OneBitAdam compresses")));
}

/// A block that uses all tokens at a time and doesn't declare how it treats them.
class Mean final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    params.add("weight", {4, 4}, {LogicalAxis::None, LogicalAxis::Embed}, Init::zeros());
  }
  nn::Outcome forward(nn::Flow in,
                      const nn::Batch& /*batch*/,
                      nn::StepContext& /*context*/) override {
    return {.flow = std::move(in)};
  }
};

std::string problems_of_own(const std::string& parallel, const nn::Model& model) {
  try {
    make_plan(json::parse(R"({"train_batch_size": 8, "data": {"train": "a.txt",
                              "sequence_length": 128}, "parallel": )" +
                              parallel + "}",
                          "c.json"),
              4,
              "c.json",
              model);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(ContextParallelOptions, OfTheProgramsOwnModelNeedBlocksThatWorkByToken) {
  const nn::Model known = models::gpt2({});
  nn::Model mixed = known;
  mixed.blocks[1] = {"mean", [] { return std::make_unique<Mean>(); }};
  const std::string tokens = R"({"tensor": 2, "sequence": true})";

  EXPECT_EQ(problems_of_own(R"({"context": 4})", known), "");
  EXPECT_EQ(problems_of_own(tokens, known), "");
  EXPECT_THAT(problems_of_own(R"({"context": 4})", mixed),
              AllOf(HasSubstr("parallel.context.size: block mean may need all tokens"),
                    HasSubstr("nn::Block::works_by_token()")));
  EXPECT_THAT(problems_of_own(tokens, mixed),
              AllOf(HasSubstr("parallel.sequence: block mean may need all tokens"),
                    HasSubstr("set it to false")));
}

TEST(ContextParallelOptions, UlyssesDividesTheHeadsOfTheProgramsOwnModel) {
  models::Gpt2Shape shape;
  shape.hidden_size = 48;
  shape.num_heads = 6;

  EXPECT_THAT(
      problems_of_own(R"({"context": {"size": 4, "mode": "ulysses"}})", models::gpt2(shape)),
      HasSubstr("6 heads cannot be shared evenly by tensor 1 x context 4 = 4 ranks"));
}

TEST(ContextParallelPlan, ReportsItsLayoutAndTheBatchOfWhatIsLeft) {
  const Plan plan = plan_of(nano(128) +
                                R"("parallel": {"context": 2, "tensor": 2},
                                   "gradient_accumulation_steps": 2)",
                            8);

  EXPECT_EQ(plan.layout().data_ranks, 2);
  EXPECT_EQ(plan.layout().micro_batch, 2);
  EXPECT_THAT(report::first_table(PlanWithData(plan, {}), {}),
              Contains(AllOf(HasSubstr("8 ranks"), HasSubstr("context parallel 2 (ring)"))));
}

TEST(ContextParallelMemory, OfActivationsShrinksWithTheTokens) {
  const auto need = [](const std::string& context, int ranks) {
    return estimate_memory(plan_of(
        R"("model": {"preset": "nano"}, "train_micro_batch_size_per_gpu": 4,
           "data": {"train": "a.txt", "sequence_length": 128}, "eval": {"every": 0})" +
            context,
        ranks));
  };
  const MemoryEstimate one = need("", 1);
  for (const char* mode : {"ring", "ulysses"}) {
    const auto shared = [&](int ranks) {
      return need(std::string(R"(, "parallel": {"context": {"mode": ")") + mode + R"(", "size": )" +
                      std::to_string(ranks) + "}}",
                  ranks);
    };

    EXPECT_EQ(shared(2).parameters, one.parameters);
    EXPECT_EQ(shared(2).optimizer, one.optimizer);
    EXPECT_LT(shared(2).activations, one.activations);
    EXPECT_LT(shared(4).activations, shared(2).activations);
  }
}

// No probabilities are kept, by neither way of sharing.
TEST(ContextParallelMemory, WithDropoutGrowsWithTheLengthAlone) {
  const auto activations = [](const std::string& mode, int length) {
    return estimate_memory(plan_of(R"("model": {"preset": "nano", "max_positions": 8192,
                                    "attention_dropout": 0.1, "num_layers": 12},
                          "train_micro_batch_size_per_gpu": 1, "eval": {"every": 0},
                          "data": {"train": "a.txt", "sequence_length": )" +
                                       std::to_string(length) +
                                       R"(}, "parallel": {"context": {"size": 4,
                          "mode": ")" + mode +
                                       "\"}}",
                                   4))
        .activations;
  };

  for (const char* mode : {"ring", "ulysses"})
    EXPECT_LE(activations(mode, 8192), 2 * activations(mode, 4096)) << mode;
}

}  // namespace
}  // namespace tessera::planner
