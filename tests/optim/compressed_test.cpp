// SPDX-License-Identifier: Apache-2.0
// Rules that exchange signs, on a single rank: the exchange returns its input unchanged.
#include "tessera/optim/compressed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "optim/rules.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

using Numbers = std::vector<double>;

// fp32 weights and states compared with float64; dividing by 1 - beta1 makes ten roundings out of
// one.
constexpr double kTolerance = 1e-5;
constexpr std::int64_t kNumel = 100;
constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-6, kDecay = 0.1, kRate = 0.01;

std::string params(const std::string& more) {
  return R"({"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.1)" + more + "}";
}

/// One parameter as ShardedOptimizer updates it on one rank.
class Alone {
 public:
  Alone(const std::string& type, const std::string& more, std::vector<float> start)
      : made_(rule_of(type, params(more))),
        rule(dynamic_cast<const CompressedRule&>(*made_)),
        master(std::move(start)),
        facts_(vector_of(static_cast<std::int64_t>(master.size()))) {
    for (std::size_t i = 0; i < rule.state(facts_).size(); ++i)
      states.emplace_back(master.size(), 0.0F);
    scalars.resize(static_cast<std::size_t>(rule.num_scalars()));
  }

  void update(const std::vector<float>& grad, std::int64_t step) {
    const UpdateScalars update{.lr = rule.base_lr(), .step = step};
    CompressedView view;
    view.master = master.data();
    view.grad = grad.data();
    view.numel = static_cast<std::int64_t>(master.size());
    for (std::vector<float>& state : states)
      view.state.push_back(state.data());
    view.facts = &facts_;
    view.scalars = scalars;
    if (rule.exchange(step) == Exchange::Gradients) {
      exact(view, update);
    } else {
      compressed(view, update);
    }
  }

 private:
  std::unique_ptr<Rule> made_;

 public:
  const CompressedRule& rule;
  std::vector<float> master;
  std::vector<std::vector<float>> states;
  std::vector<double> scalars;

 private:
  void exact(CompressedView& view, const UpdateScalars& update) {
    Numbers norms(static_cast<std::size_t>(rule.num_norms(facts_)));
    if (!norms.empty()) rule.prepare(view, update, norms.data());  // one chunk
    for (double& norm : norms)
      norm = std::sqrt(norm);
    rule.adapt(scalars, norms, update);
    view.norms = norms;
    rule.update(view, update);
  }

  void compressed(CompressedView& view, const UpdateScalars& update) {
    if (rule.exchange(update.step - 1) == Exchange::Gradients) {
      rule.freeze(view);
      MomentumSize size{1.0, scalars};
      if (rule.fused()) rule.start({&size, 1});
    }
    const std::vector<float> last = states.front();
    view.last = last.data();
    rule.local(view, update);
    rule.received(view);
    if (rule.num_measures() > 0) {
      Numbers measures(static_cast<std::size_t>(rule.num_measures()));
      rule.measure(view, update, measures.data());
      for (std::size_t k = 0; k + 1 < measures.size(); ++k)
        measures[k] = std::sqrt(measures[k]);
      rule.adapt(scalars, measures, update);
    }
    rule.finish(view, update);
  }

  ParamFacts facts_;
};

std::vector<float> grad_of(std::int64_t step) {
  // Gradients that become smaller, so that v becomes outdated.
  const float scale = step < 6 ? 1.0F : 0.3F;
  return random_floats(kNumel, 100 + static_cast<unsigned>(step), scale);
}

Numbers mean_of(const Numbers& mean, const Numbers& grad, double beta) {
  Numbers out;
  for (std::size_t i = 0; i < mean.size(); ++i)
    out.push_back(beta * mean[i] + (1 - beta) * grad[i]);
  return out;
}
Numbers squared(Numbers values) {
  for (double& value : values)
    value *= value;
  return values;
}

TEST(OneBitAdam, MovesByTheMomentumOverASquareThatStandsStill) {
  Alone ours("OneBitAdam", R"(, "freeze_step": 3)", random_floats(kNumel, 1));
  Numbers p = widened(ours.master), m(kNumel, 0.0), v(kNumel, 0.0);

  for (std::int64_t t = 1; t <= 8; ++t) {
    const Numbers g = widened(grad_of(t));
    m = mean_of(m, g, kBeta1);
    if (t <= 3) v = mean_of(v, squared(g), kBeta2);
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] -= kRate * (m[i] / (std::sqrt(v[i]) + kEps) + kDecay * p[i]);

    ours.update(grad_of(t), t);

    expect_close(ours.master, p, kTolerance);
    expect_close(ours.states[0], m, kTolerance);
    expect_close(ours.states[1], v, kTolerance);
  }
}

TEST(OneBitAdam, LeavesElementsAloneThatNeverHadAGradient) {
  Alone ours("OneBitAdam", R"(, "freeze_step": 1)", {1.0F, 2.0F});
  ours.update({0.5F, 0.0F}, 1);
  const float before = ours.master[1];

  // The sign of a momentum of 0.
  ours.states[0][1] = 0.25F;
  ours.update({0.5F, 0.25F}, 2);

  EXPECT_FLOAT_EQ(ours.master[1], before * (1.0F - 0.01F * 0.1F));
  EXPECT_EQ(ours.states[1][1], std::numeric_limits<float>::infinity());
}

/// DeepSpeed's OnebitLamb, without the exchange.
struct LambReference {
  Numbers p, m = Numbers(kNumel, 0.0), v = m, fresh = m;
  double frozen = 0.0, last_factor = 1.0;

  void update(const Numbers& g, bool warm, bool last_warm) {
    const Numbers before = m;
    m = mean_of(m, g, kBeta1);
    if (warm) v = mean_of(v, squared(g), kBeta2);
    Numbers update, plain;
    for (std::size_t i = 0; i < p.size(); ++i) {
      plain.push_back(m[i] / (std::sqrt(v[i]) + kEps));
      update.push_back(plain[i] + kDecay * p[i]);
    }
    double ratio = 0.0;
    if (warm) {
      ratio = std::clamp(norm_of(p) / norm_of(update), 0.01, 10.0);
      frozen = 0.8 * frozen + 0.2 * ratio;
      if (last_warm) fresh = v;
    } else {
      ratio = frozen * factor(before, plain, update);
    }
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] -= kRate * ratio * update[i];
  }

 private:
  double factor(const Numbers& before, const Numbers& plain, const Numbers& update) {
    double out = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = (m[i] - kBeta1 * before[i]) / (1 - kBeta1);
      fresh[i] = kBeta2 * fresh[i] + (1 - kBeta2) * g * g;
      out = std::max(out, (std::sqrt(v[i]) + kEps) / (std::sqrt(fresh[i]) + kEps));
    }
    const double share = std::min(1.0, norm_of(plain) / norm_of(update));
    out = out * share + 1.0 - share;
    out = std::clamp(out, 0.5, 1.01);
    last_factor = std::clamp(out, last_factor * 0.998, last_factor * 1.002);
    return last_factor;
  }
};

TEST(OneBitLamb, AdaptsTheTrustRatioOfItsWarmUp) {
  Alone ours(
      "OneBitLamb",
      R"(, "freeze_step": 5, "coeff_beta": 0.8, "factor_max": 1.01, "factor_threshold": 0.002)",
      random_floats(kNumel, 2));
  LambReference reference{.p = widened(ours.master)};
  std::vector<double> factors;

  for (std::int64_t t = 1; t <= 14; ++t) {
    reference.update(widened(grad_of(t)), t <= 5, t == 5);
    factors.push_back(reference.last_factor);

    ours.update(grad_of(t), t);

    expect_close(ours.master, reference.p, kTolerance);
    expect_close(ours.states[0], reference.m, kTolerance);
  }
  expect_close(ours.states[2], reference.fresh, kTolerance);
  // The factor has moved by its threshold, and come to its bound.
  EXPECT_THAT(factors, testing::Contains(testing::DoubleEq(1.002)));
  EXPECT_THAT(factors, testing::Contains(testing::DoubleEq(1.01)));
}

TEST(OneBitLamb, BringsMomentaToOneSize) {
  const auto made = rule_of("OneBitLamb", "{}");
  const auto& rule = dynamic_cast<const CompressedRule&>(*made);
  std::vector<double> small(3), large(3), nothing(3);
  std::vector<MomentumSize> momenta = {{1.0, small}, {5.0, large}, {0.0, nothing}};

  rule.start(momenta);

  EXPECT_DOUBLE_EQ(small[2], 2.0);
  EXPECT_DOUBLE_EQ(large[2], 0.4);
  EXPECT_DOUBLE_EQ(nothing[2], 1.0);
}

TEST(OneBitLamb, RefusesBoundsThatCross) {
  EXPECT_EQ(make_rule("OneBitLamb", R"({"min_coeff": 2, "max_coeff": 1})").problems.list().size(),
            1U);
  EXPECT_EQ(make_rule("OneBitLamb", R"({"factor_min": 5})").problems.list().size(), 1U);
  EXPECT_EQ(make_rule("OneBitLamb", R"({"coeff_beta": 1.0})").problems.list().size(), 1U);
}

std::string kinds(const CompressedRule& rule, std::int64_t last) {
  std::string out;
  for (std::int64_t t = 1; t <= last; ++t)
    out += "gs-"[static_cast<int>(rule.exchange(t))];
  return out;
}

TEST(ZeroOneAdam, RefreshesAndMeetsAtGrowingIntervals) {
  const auto made = rule_of("ZeroOneAdam",
                            R"({"var_freeze_step": 14, "var_update_scaler": 2,
                                "local_step_scaler": 3, "local_step_clipper": 4})");

  // Two refreshes each at intervals of 1, 2 and 4; then three updates each at 1 and 2, and then 4.
  EXPECT_EQ(kinds(dynamic_cast<const CompressedRule&>(*made), 14 + 16),
            "ggsgsgsgsssgss"
            "sss"
            "s-s"
            "---s---s--");
}

TEST(ZeroOneAdam, TakesLocalStepsAndSynchronizes) {
  Alone ours("ZeroOneAdam",
             R"(, "var_freeze_step": 4, "var_update_scaler": 1,
                  "local_step_scaler": 2, "local_step_clipper": 4)",
             random_floats(kNumel, 3));
  ASSERT_EQ(kinds(ours.rule, 12), "ggsgss-s---s");
  Numbers agreed = widened(ours.master), own = agreed, m(kNumel, 0.0), v(kNumel, 0.0);
  double rates = 0.0;

  for (std::int64_t t = 1; t <= 12; ++t) {
    const Numbers g = widened(grad_of(t));
    m = mean_of(m, g, kBeta1);
    if (ours.rule.exchange(t) == Exchange::Gradients) v = mean_of(v, squared(g), kBeta2);
    for (std::size_t i = 0; i < own.size(); ++i)
      own[i] -= kRate * (m[i] / (std::sqrt(v[i]) + kEps) + kDecay * own[i]);
    rates += kRate;
    const bool meets = t <= 4 || ours.rule.exchange(t) == Exchange::Signs;
    for (std::size_t i = 0; i < own.size() && meets; ++i) {
      const double momentum = (agreed[i] - own[i]) * (std::sqrt(v[i]) + kEps) / rates;
      if (t > 4) m[i] = momentum;
      agreed[i] = own[i];
    }
    if (meets) rates = 0.0;

    ours.update(grad_of(t), t);

    expect_close(ours.master, agreed, kTolerance);
    std::vector<float> weights = ours.master;
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += ours.states[0][i];
    expect_close(weights, own, kTolerance);
    expect_close(ours.states[1], m, kTolerance);
  }
}

TEST(SignRules, TakeDeepSpeedsNamesOfLibraries) {
  for (const std::string type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"}) {
    EXPECT_TRUE(
        make_rule(type, R"({"cuda_aware": true, "comm_backend_name": "mpi"})").problems.empty());
    EXPECT_EQ(make_rule(type, R"({"comm_backend_name": "smoke"})").problems.list().size(), 1U)
        << type;
  }
}

}  // namespace
}  // namespace tessera::optim
