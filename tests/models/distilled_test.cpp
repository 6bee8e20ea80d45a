// SPDX-License-Identifier: Apache-2.0
// The loss of a distillation and its gradient, against the formulas of Hinton et al. 2015.
#include "tessera/models/objectives/distilled.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {
namespace {

/// Its input is the logits, and its loss is their sum.
class Plain final : public nn::Objective {
 public:
  void declare(nn::Params& /*params*/) override {}
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& /*context*/) override {
    if (!batch.has("labels")) return {.outputs = {{"logits", in.diff.at(0)}}};
    return {.terms = {{.name = "loss", .sum = in.diff.at(0).sum()}}};
  }
  [[nodiscard]] std::vector<double> denominators(const nn::Batch& /*batch*/) const override {
    return {7.0};
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& /*batch*/) const override {
    return 3;
  }
};

struct Case {
  at::Tensor student = at::tensor({1.0F, -2.0F, 0.5F, 0.25F, 3.0F, -1.0F, 2.0F, 0.0F, 1.0F})
                           .view({1, 3, 3})
                           .requires_grad_();
  at::Tensor teacher =
      at::tensor({0.0F, 1.0F, 2.0F, -1.0F, 0.5F, 0.5F, 4.0F, -3.0F, 0.0F}).view({1, 3, 3});
  nn::Batch batch;
  Case() {
    batch.sample_ids = {0};
    batch.set("labels", at::tensor({2, -100, 0}, at::kLong).view({1, 3}));
  }
  DistillForm form;
  [[nodiscard]] std::unique_ptr<nn::Block> objective(DistillWeights weights) const {
    nn::BlockSpec plain{"head", [] { return std::make_unique<Plain>(); }};
    nn::Params params("head");
    return nn::make_block(
        distilled(
            std::move(plain), [this](const nn::Batch&) { return teacher; }, weights, form),
        params);
  }
  [[nodiscard]] nn::Outcome run(DistillWeights weights, nn::Mode mode = nn::Mode::Train) const {
    nn::StepContext context(mode, 0);
    return objective(weights)->forward({.diff = {student}}, batch, context);
  }
};

std::vector<double> softmax(const at::Tensor& logits, int row, double temperature) {
  std::vector<double> out;
  double sum = 0;
  for (int v = 0; v < 3; ++v)
    sum += out.emplace_back(std::exp(logits[0][row][v].item<double>() / temperature));
  for (double& value : out)
    value /= sum;
  return out;
}

// Values and gradients are computed in fp32.
constexpr double kRounding = 1e-5;

TEST(Distilled, AddsTheDivergenceOfRowsThatHaveALabel) {
  const Case one;
  constexpr double kT = 2.0;
  const nn::Outcome out = one.run({.temperature = kT, .alpha = 0.25});

  double expected = 0;
  for (const int row : {0, 2}) {
    const std::vector<double> p = softmax(one.teacher, row, kT), q = softmax(one.student, row, kT);
    for (std::size_t v = 0; v < 3; ++v)
      expected += kT * kT * p[v] * std::log(p[v] / q[v]);
  }
  ASSERT_EQ(out.terms.size(), 2U);
  EXPECT_EQ(out.terms[0].name, "loss");
  EXPECT_EQ(out.terms[0].weight, 0.75);
  EXPECT_EQ(out.terms[1].name, "distillation");
  EXPECT_EQ(out.terms[1].weight, 0.25);
  EXPECT_EQ(out.terms[1].denominator, 1);
  EXPECT_NEAR(out.terms[1].sum.item<double>(), expected, kRounding);
}

TEST(Distilled, GivesTheLabelsAWeightOfTheirOwn) {
  const nn::Outcome out = Case().run({.temperature = 1.0, .alpha = 0.1, .label_weight = 1.0});

  EXPECT_EQ(out.terms[0].weight, 1.0);
  EXPECT_EQ(out.terms[1].weight, 0.1);
}

TEST(Distilled, HasTheGradientOfTheFormula) {
  const Case one;
  for (const double t : {1.0, 4.0}) {
    const nn::Outcome out = one.run({.temperature = t, .alpha = 1.0});

    const at::Tensor gradient = torch::autograd::grad({out.terms[1].sum}, {one.student}).front();

    for (int row = 0; row < 3; ++row) {
      const std::vector<double> p = softmax(one.teacher, row, t), q = softmax(one.student, row, t);
      for (int v = 0; v < 3; ++v) {
        const auto i = static_cast<std::size_t>(v);
        EXPECT_NEAR(
            gradient[0][row][v].item<double>(), row == 1 ? 0.0 : t * (q[i] - p[i]), kRounding);
      }
    }
  }
}

TEST(Distilled, CountsLabelsAndTakesAsManySamplesAsTheObjective) {
  const Case one;
  const auto block = one.objective({});
  const auto& objective = dynamic_cast<const nn::Objective&>(*block);

  EXPECT_EQ(objective.denominators(one.batch), (std::vector<double>{7.0, 2.0}));
  EXPECT_EQ(objective.samples_at_once(one.batch), 3);
}

TEST(Distilled, IsTheObjectiveItselfWithoutTraining) {
  const nn::Outcome out = Case().run({}, nn::Mode::Eval);

  ASSERT_EQ(out.terms.size(), 1U);
  EXPECT_EQ(out.terms[0].weight, 1.0);
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

TEST(Distilled, AddsTheDivergenceOfBothOutcomesOfFlags) {
  Case one;
  one.form.predictions = Predictions::Flags;
  one.batch.set("labels", at::zeros({1, 3, 3}));
  constexpr double kT = 2.0;

  const nn::Outcome out = one.run({.temperature = kT, .alpha = 0.5});

  double expected = 0;
  for (int i = 0; i < 9; ++i) {
    const double p = sigmoid(one.teacher[0][i / 3][i % 3].item<double>() / kT),
                 q = sigmoid(one.student[0][i / 3][i % 3].item<double>() / kT);
    expected += kT * kT * (p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)));
  }
  EXPECT_NEAR(out.terms[1].sum.item<double>(), expected, kRounding);
  const auto block = one.objective({});
  EXPECT_EQ(dynamic_cast<const nn::Objective&>(*block).denominators(one.batch).back(), 9.0);
}

TEST(Distilled, AddsTheSquaredDifferenceOfNumbers) {
  Case one;
  one.form.predictions = Predictions::Numbers;

  const nn::Outcome out = one.run({.temperature = 2.0, .alpha = 0.5});

  EXPECT_NEAR(out.terms[1].sum.item<double>(),
              (one.student.detach() - one.teacher).square().sum().item<double>(),
              kRounding);
  one.teacher = one.teacher.narrow(2, 0, 2);
  EXPECT_THROW((void)one.run({}), Error);
}

TEST(Distilled, HasATermForEachLabelHead) {
  Case one;
  one.student = one.student.detach().view({3, 3}).requires_grad_();
  one.teacher = one.teacher.view({3, 3});
  one.form.heads = {{.name = "topic", .first = 0, .size = 1, .weight = 1.0},
                    {.name = "mood", .first = 1, .size = 2, .weight = 0.5}};
  one.batch.set("labels", at::tensor({0, 1, -100, 0, 0, -100}, at::kLong).view({3, 2}));

  const nn::Outcome out = one.run({.temperature = 1.0, .alpha = 0.5});

  ASSERT_EQ(out.terms.size(), 3U);
  EXPECT_EQ(out.terms[1].name, "topic_distillation");
  EXPECT_EQ(out.terms[1].sum.item<double>(), 0.0);  // one class
  EXPECT_EQ(out.terms[2].name, "mood_distillation");
  EXPECT_EQ(out.terms[2].denominator, 2);
  EXPECT_EQ(out.terms[2].weight, 0.25);
  double expected = 0;
  for (const int row : {0, 1}) {
    const double p = sigmoid((one.teacher[row][1] - one.teacher[row][2]).item<double>()),
                 q = sigmoid((one.student[row][1] - one.student[row][2]).item<double>());
    expected += p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q));
  }
  EXPECT_NEAR(out.terms[2].sum.item<double>(), expected, kRounding);
  const auto block = one.objective({});
  EXPECT_EQ(dynamic_cast<const nn::Objective&>(*block).denominators(one.batch),
            (std::vector<double>{7.0, 2.0, 2.0}));
}

TEST(Distilled, KnowsTheFormOfAnObjective) {
  const auto form_of = [](const char* options) {
    return distill_form({.name = "sequence_classification", .options = json::parse(options, "t")});
  };
  EXPECT_EQ(form_of("{}")->predictions, Predictions::Classes);
  EXPECT_EQ(form_of(R"({"problem_type": "regression"})")->predictions, Predictions::Numbers);
  EXPECT_EQ(form_of(R"({"problem_type": "multi_label_classification"})")->predictions,
            Predictions::Flags);
  EXPECT_EQ(form_of(R"({"heads": [{"name": "a", "labels": ["x", "y"]},
                                  {"name": "b", "labels": ["z"], "weight": 2}]})")
                ->heads.at(1)
                .first,
            2);
  EXPECT_FALSE(distill_form({.name = "reward"}).has_value());
}

TEST(Distilled, DropsLogitsBeyondTheSmallerNumberAndRefusesOtherRows) {
  Case one;
  const double same = one.run({}).terms[1].sum.item<double>();
  one.teacher = at::cat({one.teacher, at::full({1, 3, 2}, 50.0F)}, -1);
  EXPECT_EQ(one.run({}).terms[1].sum.item<double>(), same);

  one.teacher = one.teacher.narrow(1, 0, 2);
  EXPECT_THROW((void)one.run({}), Error);
}

}  // namespace
}  // namespace tessera::models
