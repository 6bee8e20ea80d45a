// SPDX-License-Identifier: Apache-2.0
// labels: fast
// How the executor handles errors within a block, and blocks that are wrong.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include "support/test_param.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/caching_allocator.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

enum class When : std::uint8_t { Forward, Backward };

/// Asks for a petabyte, which no system has.
at::Tensor ask_for_too_much() {
  return at::empty({std::int64_t{1} << 50}, at::kByte);
}

class Hungry final : public nn::Objective {
 public:
  explicit Hungry(When when) : when_(when) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {4}, {LogicalAxis::Embed}, Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext&) override {
    if (batch.size() > 0 && when_ == When::Forward) ask_for_too_much();
    const at::Tensor sum = weight_->tensor().sum();
    if (when_ == When::Backward)
      sum.register_hook([](const at::Tensor& /*grad*/) { ask_for_too_much(); });
    return {.terms = {{.name = "loss", .sum = sum}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& /*batch*/) const override {
    return {1.0};
  }

 private:
  When when_;
  Param* weight_ = nullptr;
};

Error error_of(When when) {
  memory::install_caching_allocator();
  nn::Model model;
  model.blocks.push_back({"hungry", [when] { return std::make_unique<Hungry>(when); }});
  test::ModelRunner runner(model);
  runner.initialize(3);
  try {
    runner.train(test::make_batch(at::zeros({1, 2}, at::kLong)));
  } catch (const Error& error) {
    return error;
  }
  return {Error::Kind::Bug, "nothing was thrown"};
}

TEST(OutOfMemory, NamesTheBlockAndItsPass) {
  for (const When when : {When::Forward, When::Backward}) {
    const Error error = error_of(when);
    const std::string pass = when == When::Forward ? "forward" : "backward";

    EXPECT_EQ(error.kind(), Error::Kind::Memory) << error.text();
    EXPECT_THAT(error.what(), StartsWith("out of memory in " + pass + " of block hungry: "));
    EXPECT_THAT(error.what(), HasSubstr("has no 1.0 PiB more"));
    EXPECT_THAT(error.fix(), HasSubstr("micro_batch"));
  }
}

/// The terms and denominators that a test asks for.
class Given final : public nn::Objective {
 public:
  Given(std::vector<int> terms, std::size_t denominators)
      : terms_(std::move(terms)), denominators_(denominators, 1.0) {}
  void declare(nn::Params& params) override {
    weight_ = params.add("weight", {4}, {LogicalAxis::Embed}, Init::normal(1.0));
  }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& /*batch*/, nn::StepContext&) override {
    nn::Outcome out;
    for (const int denominator : terms_)
      out.terms.push_back(
          {.name = "size", .sum = weight_->tensor().sum(), .denominator = denominator});
    return out;
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& /*batch*/) const override {
    return denominators_;
  }

 private:
  std::vector<int> terms_;
  std::vector<double> denominators_;
  Param* weight_ = nullptr;
};

nn::Model given(const std::vector<int>& terms, std::size_t denominators) {
  nn::Model model;
  model.blocks.push_back({"mine", [=] { return std::make_unique<Given>(terms, denominators); }});
  return model;
}

/// The error of training it; empty if it trains.
std::string refusal_of(const std::vector<int>& terms, std::size_t denominators) {
  test::ModelRunner runner(given(terms, denominators));
  runner.initialize(3);
  try {
    runner.train(test::make_batch(at::zeros({1, 2}, at::kLong)));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Shape) << error.text();
    return error.what();
  }
  return "";
}

TEST(TermsOfTheLoss, HaveADenominatorEach) {
  EXPECT_EQ(refusal_of({1, 0}, 2), "");
  EXPECT_THAT(refusal_of({0}, 0),
              HasSubstr("block mine: the term \"size\" of the loss is divided by denominator 0, "
                        "and the objective's denominators() gives 0"));
  EXPECT_THAT(refusal_of({0, 2}, 2), HasSubstr("is divided by denominator 2"));
  EXPECT_THAT(refusal_of({-1}, 1), HasSubstr("is divided by denominator -1"));
}

TEST(TermsOfTheLoss, AreGivenByNameWithoutTheirWeights) {
  test::ModelRunner runner(given({0}, 1));
  runner.initialize(3);
  nn::StepContext context(nn::Mode::Eval, 1);
  std::vector<TermValues> terms;

  const nn::Outcome out =
      parallel::Executor(runner.instance(), {})
          .infer(test::make_batch(at::zeros({1, 2}, at::kLong)), context, &terms);

  ASSERT_EQ(terms.size(), 1U);
  EXPECT_EQ(terms[0].name, "size");
  EXPECT_EQ(terms[0].block, 0);
  EXPECT_EQ(terms[0].values, std::vector<double>{out.terms.at(0).sum.item<double>()});
}

TEST(TermsOfTheLoss, AreMissedInTrainingAlone) {
  EXPECT_THAT(refusal_of({}, 1), HasSubstr("the objective mine returns no term of the loss"));

  test::ModelRunner runner(given({}, 1));
  runner.initialize(3);
  nn::StepContext context(nn::Mode::Eval, 1);
  EXPECT_TRUE(runner.infer(test::make_batch(at::zeros({1, 2}, at::kLong)), context).terms.empty());
}

}  // namespace
}  // namespace tessera::parallel
