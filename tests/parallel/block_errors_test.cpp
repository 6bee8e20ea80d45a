// SPDX-License-Identifier: Apache-2.0
// A mistake in a user's block ends with exit code 2 and the block's name.
#include "tessera/parallel/block_errors.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"

namespace tessera::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Legend: B batch, T tokens, C channels.
constexpr std::int64_t kBatch = 2, kTokens = 3, kChannels = 8;

/// The forward of the block in the middle, with x_BTC and its weight [C + 1, C], which does not
/// fit.
using Forward = std::function<nn::Flow(nn::Flow in, const nn::Batch& batch, Param& weight)>;
/// The terms that the objective computes from x_BTC.
using Terms = std::function<std::vector<nn::Term>(const at::Tensor& x, const nn::Batch& batch)>;

class First final : public nn::Block {
 public:
  void declare(nn::Params& params) override {
    weight_ = params.add(
        "weight", {kTokens, kChannels}, {LogicalAxis::None, LogicalAxis::Embed}, Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext&) override {
    return {.flow = {.diff = {weight_->tensor().expand({batch.size(), kTokens, kChannels})}}};
  }

 private:
  Param* weight_ = nullptr;
};

class Middle final : public nn::Block {
 public:
  explicit Middle(Forward forward) : forward_(std::move(forward)) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight",
                         {kChannels + 1, kChannels},
                         {LogicalAxis::Ffn, LogicalAxis::Embed},
                         Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext&) override {
    return {.flow = forward_(std::move(in), batch, *weight_)};
  }

 private:
  Forward forward_;
  Param* weight_ = nullptr;
};

class Last final : public nn::Objective {
 public:
  Last(Terms terms, std::string counted, std::int64_t at_once)
      : terms_(std::move(terms)), counted_(std::move(counted)), at_once_(at_once) {}
  void declare(nn::Params& /*params*/) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext&) override {
    return {.terms = terms_(in.diff.at(0), batch)};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& batch) const override {
    return {static_cast<double>(batch.tensor(counted_).numel())};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& /*batch*/) const override {
    return at_once_;
  }

 private:
  Terms terms_;
  std::string counted_;
  std::int64_t at_once_;
};

nn::Flow unchanged(nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
  return in;
}
std::vector<nn::Term> sum_of(const at::Tensor& x, const nn::Batch& /*batch*/) {
  return {{.name = "size", .sum = x.sum()}};
}

/// A model with one mistake.
struct Mistake {
  Forward forward = unchanged;
  Terms terms = sum_of;
  std::string counted = "input_ids";
  std::int64_t at_once = 0;
};

nn::Model model_of(const Mistake& mistake) {
  nn::Model model;
  model.blocks.push_back({"first", [] { return std::make_unique<First>(); }});
  model.blocks.push_back(
      {"middle", [mistake] { return std::make_unique<Middle>(mistake.forward); }});
  model.blocks.push_back({"mine", [mistake] {
                            return std::make_unique<Last>(
                                mistake.terms, mistake.counted, mistake.at_once);
                          }});
  return model;
}

/// The error of a training step.
Error error_of(const Mistake& mistake) {
  test::ModelRunner runner(model_of(mistake));
  runner.initialize(3);
  try {
    runner.train(test::make_batch(at::zeros({kBatch, kTokens}, at::kLong)));
  } catch (const Error& error) {
    return error;
  }
  return {Error::Kind::Bug, "nothing was thrown"};
}

void expect_shape_error(const Mistake& mistake, const testing::Matcher<std::string>& text) {
  const Error error = error_of(mistake);
  EXPECT_EQ(error.kind(), Error::Kind::Shape) << error.text();
  EXPECT_EQ(exit_code(error.kind()), 2);
  EXPECT_THAT(std::string(error.what()), text);
  EXPECT_FALSE(error.fix().empty());
}

TEST(BlockErrors, AreNotMadeOfACorrectModel) {
  EXPECT_STREQ(error_of({}).what(), "nothing was thrown");
}

TEST(BlockErrors, NameTheTermOfTheLossThatIsNotReduced) {
  expect_shape_error(
      {.terms =
           [](const at::Tensor& x, const nn::Batch& /*batch*/) {
             return std::vector<nn::Term>{{.name = "squares", .sum = x.square()}};
           }},
      AllOf(HasSubstr("block mine"), HasSubstr("\"squares\""), HasSubstr("[2, 3, 8]")));
}

TEST(BlockErrors, NameTheTermOfTheLossWithoutAValue) {
  expect_shape_error({.terms =
                          [](const at::Tensor& /*x*/, const nn::Batch& /*batch*/) {
                            return std::vector<nn::Term>{{.name = "nothing", .sum = {}}};
                          }},
                     AllOf(HasSubstr("block mine"), HasSubstr("\"nothing\"")));
}

TEST(BlockErrors, NameTheBlockThatReturnsAnUndefinedTensor) {
  expect_shape_error({.forward =
                          [](nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
                            in.diff.emplace_back();
                            return in;
                          }},
                     AllOf(HasSubstr("block middle"), HasSubstr("flow.diff[1]")));
}

TEST(BlockErrors, NameTheBlockThatReturnsIntegersAsDifferentiable) {
  expect_shape_error({.forward =
                          [](nn::Flow in, const nn::Batch& batch, Param& /*weight*/) {
                            in.diff.push_back(batch.tensor("input_ids"));
                            return in;
                          }},
                     AllOf(HasSubstr("block middle"), HasSubstr("Long")));
}

TEST(BlockErrors, NameTheBlockWithAProductOfWrongSizes) {
  expect_shape_error(
      {.forward =
           [](nn::Flow in, const nn::Batch& /*batch*/, Param& weight) {
             in.diff[0] = at::matmul(in.diff[0], weight.tensor());
             return in;
           }},
      AllOf(HasSubstr("forward of block middle"), HasSubstr("its inputs are [2, 3, 8]")));
}

TEST(BlockErrors, NameTheBlockThatReadsAnInputOfTheWrongShape) {
  const Mistake mistake = {
      .forward =
          [](nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
            in.diff[0] = in.diff[0].flatten();
            return in;
          },
      .terms =
          [](const at::Tensor& x, const nn::Batch& batch) {
            return std::vector<nn::Term>{
                {.name = "masked", .sum = (x * batch.tensor("input_ids")).sum()}};
          }};

  expect_shape_error(mistake,
                     AllOf(HasSubstr("forward of block mine"), HasSubstr("its inputs are [48]")));
}

TEST(BlockErrors, NameTheBlockThatReadsBeyondItsFlow) {
  expect_shape_error({.forward =
                          [](nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
                            return nn::Flow{.diff = {in.diff.at(1)}};
                          }},
                     HasSubstr("forward of block middle"));
}

TEST(BlockErrors, NameTheBlockThatReadsATensorTheBatchLacks) {
  expect_shape_error(
      {.forward =
           [](nn::Flow in, const nn::Batch& batch, Param& /*weight*/) {
             in.diff[0] = in.diff[0] * batch.tensor("scales");
             return in;
           }},
      AllOf(HasSubstr("block middle"), HasSubstr("no tensor \"scales\""), HasSubstr("input_ids")));
}

TEST(BlockErrors, NameTheObjectiveWhoseDenominatorsReadATensorTheBatchLacks) {
  expect_shape_error({.counted = "scales"},
                     AllOf(HasSubstr("denominators() of block mine"), HasSubstr("\"scales\"")));
}

TEST(BlockErrors, NameTheObjectiveThatSplitsSamplesWhereThereIsNoRowForEach) {
  const Mistake mistake = {.forward =
                               [](nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
                                 in.diff[0] = in.diff[0].sum();
                                 return in;
                               },
                           .at_once = 1};

  expect_shape_error(mistake, AllOf(HasSubstr("block mine"), HasSubstr("the 2 samples")));
}

TEST(BlockErrors, NameTheBlockWhoseBackwardFails) {
  // An operation in place on a tensor that the backward of exp() needs.
  expect_shape_error({.forward =
                          [](nn::Flow in, const nn::Batch& /*batch*/, Param& /*weight*/) {
                            const at::Tensor y = in.diff[0].exp();
                            in.diff[0] = y * 1.0;
                            y.add_(1.0);
                            return in;
                          }},
                     HasSubstr("backward of block middle"));
}

TEST(BlockErrors, LeaveErrorsOfOtherKindsAsTheyAre) {
  const Error error = error_of(
      {.forward = [](nn::Flow /*in*/, const nn::Batch& /*batch*/, Param& /*weight*/) -> nn::Flow {
        throw Error(Error::Kind::Data, "the data is damaged", "mend it");
      }});

  EXPECT_EQ(error.kind(), Error::Kind::Data);
  EXPECT_STREQ(error.what(), "the data is damaged");
}

}  // namespace
}  // namespace tessera::parallel
