// SPDX-License-Identifier: Apache-2.0
// The elementwise rules against their published formulas in float64.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "optim/rules.h"
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

constexpr std::int64_t kElements = 2051;  // no multiple of a vector or a chunk
constexpr int kSteps = 6;
constexpr double kLr = 0.01, kGradScale = 0.5;
// Six updates of a few fp32 roundings (6e-8 each) of weights near 1, and of steps of kLr each.
constexpr double kTolerance = 2e-6;

/// One element: its new weight after update t, from the old one, its gradient and its state.
using Element =
    std::function<double(int t, double p, double g, double lr, double wd, std::vector<double>& s)>;

struct Case {
  std::string name, type, params;
  std::size_t states;
  double weight_decay;  ///< as given in params
  Element element;
};

Element sgd(double momentum, double dampening, bool nesterov) {
  return [=](int t, double p, double g, double lr, double wd, std::vector<double>& s) {
    g += wd * p;
    if (momentum != 0.0) {
      s[0] = t == 1 ? g : momentum * s[0] + (1.0 - dampening) * g;
      g = nesterov ? g + momentum * s[0] : s[0];
    }
    return p - lr * g;
  };
}

Element adagrad(double lr_decay, double initial) {
  return [=](int t, double p, double g, double lr, double wd, std::vector<double>& s) {
    g += wd * p;
    if (t == 1) s[0] = initial;
    s[0] += g * g;
    return p - lr / (1.0 + (t - 1) * lr_decay) * g / (std::sqrt(s[0]) + 1e-10);
  };
}

double lion(int, double p, double g, double lr, double wd, std::vector<double>& s) {
  const double towards = 0.8 * s[0] + 0.2 * g;
  s[0] = 0.95 * s[0] + 0.05 * g;
  return p - lr * wd * p - (towards > 0 ? lr : (towards < 0 ? -lr : 0.0));
}

/// States: mean square, then momentum, then mean, as far as they are kept.
Element rmsprop(double momentum, bool centered) {
  return [=](int, double p, double g, double lr, double wd, std::vector<double>& s) {
    g += wd * p;
    s[0] = 0.9 * s[0] + 0.1 * g * g;
    double spread = s[0];
    if (centered) {
      double& mean = s.back();
      mean = 0.9 * mean + 0.1 * g;
      spread -= mean * mean;
    }
    double step = g / (std::sqrt(spread) + 1e-8);
    if (momentum != 0.0) step = s[1] = momentum * s[1] + step;
    return p - lr * step;
  };
}

/// The product of mu is kept step by step, as torch keeps it.
Element nadam(bool decoupled) {
  return [=](int t, double p, double g, double lr, double wd, std::vector<double>& s) {
    const auto mu = [](int step) { return 0.9 * (1.0 - 0.5 * std::pow(0.96, step * 0.004)); };
    if (decoupled) {
      p -= lr * wd * p;
    } else {
      g += wd * p;
    }
    s[0] = 0.9 * s[0] + 0.1 * g;
    s[1] = 0.999 * s[1] + 0.001 * g * g;
    double product = 1.0;
    for (int i = 1; i <= t; ++i)
      product *= mu(i);
    const double divisor = std::sqrt(s[1] / (1.0 - std::pow(0.999, t))) + 1e-8;
    p -= lr * (1.0 - mu(t)) / (1.0 - product) * g / divisor;
    return p - lr * mu(t + 1) / (1.0 - product * mu(t + 1)) * s[0] / divisor;
  };
}

double adamax(int t, double p, double g, double lr, double wd, std::vector<double>& s) {
  g += wd * p;
  s[0] = 0.9 * s[0] + 0.1 * g;
  s[1] = std::max(0.999 * s[1], std::abs(g) + 1e-8);
  return p - lr / (1.0 - std::pow(0.9, t)) * s[0] / s[1];
}

Element adam(int hold_steps) {
  return [=](int t, double p, double g, double lr, double wd, std::vector<double>& s) {
    s[0] = 0.9 * s[0] + 0.1 * g;
    s[1] = 0.999 * s[1] + 0.001 * g * g;
    if (t <= hold_steps) return p;
    const double m = s[0] / (1.0 - std::pow(0.9, t)), v = s[1] / (1.0 - std::pow(0.999, t));
    return p - lr * wd * p - lr * m / (std::sqrt(v) + 1e-8);
  };
}

std::vector<Case> cases() {
  return {
      {"Sgd", "SGD", R"({"lr": 0.01, "weight_decay": 0.1})", 0, 0.1, sgd(0.0, 0.0, false)},
      {"SgdDampened",
       "SGD",
       R"({"lr": 0.01, "momentum": 0.9, "dampening": 0.3})",
       1,
       0.0,
       sgd(0.9, 0.3, false)},
      {"SgdNesterov",
       "SGD",
       R"({"lr": 0.01, "momentum": 0.8, "nesterov": true, "weight_decay": 0.2})",
       1,
       0.2,
       sgd(0.8, 0.0, true)},
      {"Adagrad", "Adagrad", R"({"weight_decay": 0.1})", 1, 0.1, adagrad(0.0, 0.0)},
      {"AdagradDecaying",
       "Adagrad",
       R"({"lr_decay": 0.5, "initial_accumulator_value": 0.25})",
       1,
       0.0,
       adagrad(0.5, 0.25)},
      {"Lion", "Lion", R"({"lr": 0.01, "betas": [0.8, 0.95], "weight_decay": 0.1})", 1, 0.1, lion},
      {"Rmsprop", "RMSprop", R"({"alpha": 0.9, "weight_decay": 0.1})", 1, 0.1, rmsprop(0.0, false)},
      {"RmspropWithMomentum",
       "RMSprop",
       R"({"alpha": 0.9, "momentum": 0.7})",
       2,
       0.0,
       rmsprop(0.7, false)},
      {"RmspropCentered",
       "RMSprop",
       R"({"alpha": 0.9, "centered": true})",
       2,
       0.0,
       rmsprop(0.0, true)},
      {"RmspropCenteredWithMomentum",
       "RMSprop",
       R"({"alpha": 0.9, "centered": true, "momentum": 0.7})",
       3,
       0.0,
       rmsprop(0.7, true)},
      {"NAdam", "NAdam", R"({"lr": 0.01, "weight_decay": 0.1})", 2, 0.1, nadam(false)},
      {"NAdamDecoupled",
       "NAdam",
       R"({"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": true})",
       2,
       0.1,
       nadam(true)},
      {"Adamax", "Adamax", R"({"lr": 0.01, "weight_decay": 0.1})", 2, 0.1, adamax},
      {"AdamW", "AdamW", R"({"lr": 0.01, "weight_decay": 0.1})", 2, 0.1, adam(0)},
      {"AdamHeld",
       "Adam",
       R"({"lr": 0.01, "weight_decay": 0.1, "hold_steps": 3})",
       2,
       0.1,
       adam(3)},
  };
}

class ElementwiseRule : public testing::TestWithParam<Case> {
 protected:
  /// kSteps updates here and in float64; the factors are of the parameter's group.
  void compare(bool decay, double lr_scale, std::optional<double> group_decay) {
    const Case& c = GetParam();
    const auto rule = rule_of(c.type, c.params);
    test::DrivenParam ours(*rule, vector_of(kElements), random_floats(kElements, 1));
    ours.decay = decay;
    ours.lr_scale = lr_scale;
    ours.weight_decay = group_decay;
    ASSERT_EQ(rule->scope(vector_of(kElements)), Scope::Elementwise);
    ASSERT_EQ(rule->state(vector_of(kElements)).size(), c.states);
    std::vector<double> expected = widened(ours.master());
    std::vector<std::vector<double>> states(kElements, std::vector<double>(c.states));
    const double wd = decay ? group_decay.value_or(c.weight_decay) : 0.0;

    for (int t = 1; t <= kSteps; ++t) {
      const std::vector<float> grad = random_floats(kElements, 100 + static_cast<unsigned>(t));
      ours.update(grad, {.lr = kLr, .grad_scale = kGradScale, .step = t});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] =
            c.element(t, expected[i], kGradScale * grad[i], kLr * lr_scale, wd, states[i]);
      }
    }

    expect_close(ours.master(), expected, kTolerance);
    std::vector<double> all_states;
    for (std::size_t s = 0; s < c.states; ++s) {
      for (const std::vector<double>& state : states)
        all_states.push_back(state[s]);
    }
    expect_close(ours.all_states(), all_states, kTolerance);
  }
};

TEST_P(ElementwiseRule, FollowsItsFormula) {
  compare(true, 1.0, std::nullopt);
}

TEST_P(ElementwiseRule, DoesNotDecayWhereTheViewSaysSo) {
  compare(false, 1.0, std::nullopt);
}

TEST_P(ElementwiseRule, TakesTheRateAndTheDecayOfAGroup) {
  compare(true, 0.25, 0.3);
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseRule, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.name;
});

TEST(ElementwiseSchedules, MoveMomentaAndDecay) {
  const auto of_schedule = rule_of("SGD", R"({"lr": 0.01, "momentum": 0.5, "weight_decay": 0.2})");
  const auto of_config = rule_of("SGD", R"({"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1})");
  const std::vector<float> weights = random_floats(100, 1), grad = random_floats(100, 2);
  test::DrivenParam moved(*of_schedule, vector_of(100), weights),
      given(*of_config, vector_of(100), weights);

  for (int t = 1; t <= 3; ++t) {
    moved.update(grad, {.lr = 0.01, .step = t, .beta1 = 0.9, .decay_scale = 0.5});
    given.update(grad, {.lr = 0.01, .step = t});
  }

  EXPECT_EQ(moved.master(), given.master());
}

TEST(ElementwiseSchedules, MoveBothBetas) {
  for (const std::string type : {"Adam", "Lion", "NAdam", "Adamax"}) {
    const auto of_schedule = rule_of(type, R"({"betas": [0.5, 0.6]})");
    const auto of_config = rule_of(type, R"({"betas": [0.8, 0.99]})");
    const std::vector<float> weights = random_floats(100, 1), grad = random_floats(100, 2);
    test::DrivenParam moved(*of_schedule, vector_of(100), weights),
        given(*of_config, vector_of(100), weights);

    for (int t = 1; t <= 3; ++t) {
      moved.update(grad, {.lr = 0.01, .step = t, .beta1 = 0.8, .beta2 = 0.99});
      given.update(grad, {.lr = 0.01, .step = t});
    }

    EXPECT_EQ(moved.master(), given.master()) << type;
  }
}

TEST(HeldAdam, LeavesTheWeightsToTheBitWhileItsMomentsMove) {
  const auto rule = rule_of("Adam", R"({"lr": 0.1, "weight_decay": 0.5, "hold_steps": 2})");
  const std::vector<float> weights = random_floats(100, 1);
  test::DrivenParam held(*rule, vector_of(100), weights);

  held.update(random_floats(100, 2), {.lr = 0.1, .step = 1});
  held.update(random_floats(100, 3), {.lr = 0.1, .step = 2});
  EXPECT_EQ(held.master(), weights);
  EXPECT_NE((*held.state("exp_avg"))[0], 0.0F);

  held.update(random_floats(100, 4), {.lr = 0.1, .step = 3});
  EXPECT_NE(held.master(), weights);
}

TEST(LateNAdam, StaysFiniteAndCheapAfterManyUpdates) {
  const auto rule = rule_of("NAdam", R"({"lr": 0.01})");
  test::DrivenParam param(*rule, vector_of(10), random_floats(10, 1));
  const std::vector<float> before = param.master();

  param.update(random_floats(10, 2), {.lr = 0.01, .step = 1'000'000'000});

  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(std::isfinite(param.master()[i]));
    EXPECT_NE(param.master()[i], before[i]);
  }
}

}  // namespace
}  // namespace tessera::optim
