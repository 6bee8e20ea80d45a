// SPDX-License-Identifier: Apache-2.0
// Adafactor against the algorithm of Shazeer & Stern as Hugging Face publishes it, in float64.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "optim/rules.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

constexpr std::int64_t kRows = 47, kColumns = 67;  // 3149 elements: three chunks and a rest
constexpr int kSteps = 6;
// Six updates of a dozen fp32 roundings (6e-8 each), of statistics and of weights near 1.
constexpr double kTolerance = 3e-6;

struct Settings {
  std::optional<double> lr = {}, beta1 = {};
  double clip = 1.0, decay_rate = -0.8, wd = 0.0;
  bool scaled = true, relative = true, warmup = false;
};

class Reference {
 public:
  Reference(Settings settings, const ParamFacts& facts, const std::vector<float>& weights)
      : s_(settings),
        facts_(facts),
        p(weights.begin(), weights.end()),
        avg(p.size()),
        sq(p.size()),
        row(static_cast<std::size_t>(facts.rows)),
        col(static_cast<std::size_t>(facts.columns)) {}

  void update(int t, const std::vector<double>& g) {
    double lr = s_.lr.value_or(0.0);
    if (s_.relative) lr = std::min(s_.warmup ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
    if (s_.scaled) lr *= std::max(1e-3, rms(p));
    std::vector<double> u = facts_.matrix ? factored(g, 1.0 - std::pow(t, s_.decay_rate))
                                          : whole(g, 1.0 - std::pow(t, s_.decay_rate));
    const double too_long = std::max(1.0, rms(u) / s_.clip);
    for (std::size_t i = 0; i < p.size(); ++i) {
      double step = lr * u[i] / too_long;
      if (s_.beta1) step = avg[i] = *s_.beta1 * avg[i] + (1.0 - *s_.beta1) * step;
      p[i] -= s_.wd * lr * p[i];
      p[i] -= step;
    }
  }

 private:
  static double rms(const std::vector<double>& values) {
    return norm_of(values) / std::sqrt(static_cast<double>(values.size()));
  }
  std::vector<double> whole(const std::vector<double>& g, double beta2) {
    std::vector<double> u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      sq[i] = beta2 * sq[i] + (1.0 - beta2) * (g[i] * g[i] + 1e-30);
      u[i] = g[i] / std::sqrt(sq[i]);
    }
    return u;
  }
  std::vector<double> factored(const std::vector<double>& g, double beta2) {
    const std::size_t R = row.size(), C = col.size();
    std::vector<double> of_rows(R), of_columns(C), u(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      of_rows[i / C] += (g[i] * g[i] + 1e-30) / static_cast<double>(C);
      of_columns[i % C] += (g[i] * g[i] + 1e-30) / static_cast<double>(R);
    }
    double mean = 0.0;
    for (std::size_t r = 0; r < R; ++r) {
      row[r] = beta2 * row[r] + (1.0 - beta2) * of_rows[r];
      mean += row[r] / static_cast<double>(R);
    }
    for (std::size_t c = 0; c < C; ++c)
      col[c] = beta2 * col[c] + (1.0 - beta2) * of_columns[c];
    for (std::size_t i = 0; i < g.size(); ++i)
      u[i] = g[i] / std::sqrt(row[i / C] / mean) / std::sqrt(col[i % C]);
    return u;
  }

  Settings s_;
  ParamFacts facts_;

 public:
  std::vector<double> p, avg, sq, row, col;
};

void compare(const std::string& params, const Settings& settings, const ParamFacts& facts) {
  const auto rule = rule_of("Adafactor", params);
  test::DrivenParam ours(*rule, facts, random_floats(facts.numel(), 1));
  Reference reference(settings, facts, ours.master());

  for (int t = 1; t <= kSteps; ++t) {
    const std::vector<float> grad = random_floats(facts.numel(), 100 + static_cast<unsigned>(t));
    ours.update(grad, {.lr = rule->base_lr(), .grad_scale = 0.5, .step = t});
    std::vector<double> scaled = widened(grad);
    for (double& g : scaled)
      g *= 0.5;
    reference.update(t, scaled);
  }

  expect_close(ours.master(), reference.p, kTolerance);
  if (facts.matrix) {
    expect_close(*ours.state("exp_avg_sq_row"), reference.row, kTolerance);
    expect_close(*ours.state("exp_avg_sq_col"), reference.col, kTolerance);
  } else {
    expect_close(*ours.state("exp_avg_sq"), reference.sq, kTolerance);
  }
  if (settings.beta1) expect_close(*ours.state("exp_avg"), reference.avg, kTolerance);
}

void compare_both(const std::string& params, const Settings& settings) {
  compare(params, settings, matrix_of(kRows, kColumns));
  compare(params, settings, matrix_of(kColumns, kRows));
  compare(params, settings, vector_of(kRows * kColumns));
}

TEST(AdafactorRule, FollowsThePublishedAlgorithmByDefault) {
  compare_both("{}", {});
}

TEST(AdafactorRule, TakesARateOfItsOwn) {
  compare_both(
      R"({"lr": 0.02, "relative_step": false, "scale_parameter": false, "weight_decay": 0.1})",
      {.lr = 0.02, .wd = 0.1, .scaled = false, .relative = false});
}

TEST(AdafactorRule, WarmsUpAndKeepsAMomentum) {
  compare_both(R"({"warmup_init": true, "beta1": 0.9, "decay_rate": -0.5})",
               {.beta1 = 0.9, .decay_rate = -0.5, .warmup = true});
}

TEST(AdafactorRule, ClipsTheUpdateOfAParameter) {
  compare_both(R"({"clip_threshold": 0.25})", {.clip = 0.25});
  compare_both(R"({"clip_threshold": 100})", {.clip = 100.0});
}

TEST(AdafactorRule, KeepsOneNumberARowAndOneAColumn) {
  const auto rule = rule_of("Adafactor", "{}");

  const std::vector<StateSpec> of_matrix = rule->state(matrix_of(kRows, kColumns));
  ASSERT_EQ(of_matrix.size(), 2U);
  EXPECT_EQ(of_matrix[0].extent, Extent::Rows);
  EXPECT_EQ(of_matrix[1].extent, Extent::Columns);
  EXPECT_EQ(rule->scope(matrix_of(kRows, kColumns)), Scope::WholeTensor);
  EXPECT_EQ(rule->scope(table_of(kRows, kColumns)), Scope::WholeTensor);
  EXPECT_EQ(rule->scope(vector_of(kColumns)), Scope::SegmentNorms);
}

TEST(AdafactorRule, SurvivesAGradientOfZeros) {
  const auto rule = rule_of("Adafactor", "{}");
  for (const ParamFacts& facts : {matrix_of(3, 5), vector_of(15)}) {
    test::DrivenParam param(*rule, facts, random_floats(15, 1));
    const std::vector<float> before = param.master();

    param.update(std::vector<float>(15), {.lr = 1.0, .step = 1});

    EXPECT_EQ(param.master(), before);
  }
}

TEST(AdafactorRule, RefusesTwoRatesAndNone) {
  EXPECT_THAT(make_rule("Adafactor", R"({"lr": 0.001})").problems.list(), testing::SizeIs(1));
  EXPECT_THAT(make_rule("Adafactor", R"({"relative_step": false})").problems.list(),
              testing::SizeIs(1));
  EXPECT_THAT(make_rule("Adafactor", R"({"lr": 0.1, "relative_step": false, "warmup_init": true})")
                  .problems.list(),
              testing::SizeIs(1));
  EXPECT_THAT(make_rule("Adafactor", R"({"eps": [1e-30], "beta1": 1})").problems.list(),
              testing::SizeIs(2));
}

}  // namespace
}  // namespace tessera::optim
