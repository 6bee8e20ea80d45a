// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "optim/rules.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

constexpr double kLr = 0.02;
// Products of fp32 matrices of some 60 columns, five rounds of three of them.
constexpr double kTolerance = 2e-5;

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j)
        out[i][j] += a[i][k] * b[k][j];
    }
  }
  return out;
}
Matrix transposed(const Matrix& a) {
  Matrix out(a[0].size(), std::vector<double>(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j)
      out[j][i] = a[i][j];
  }
  return out;
}
Matrix matrix(const std::vector<double>& flat, std::int64_t rows) {
  const std::size_t R = static_cast<std::size_t>(rows), C = flat.size() / R;
  Matrix out(R, std::vector<double>(C));
  for (std::size_t i = 0; i < flat.size(); ++i)
    out[i / C][i % C] = flat[i];
  return out;
}
std::vector<double> flat(const Matrix& a) {
  std::vector<double> out;
  for (const std::vector<double>& row : a)
    out.insert(out.end(), row.begin(), row.end());
  return out;
}

using Coefficients = std::vector<std::vector<double>>;
const Coefficients kJordan = {{3.4445, -4.7750, 2.0315}};

/// Five rounds on the matrix without transposing it: p(X) is odd, so the transpose gives the
/// transpose.
Matrix orthogonalized(Matrix x, const Coefficients& coefficients = kJordan) {
  const double norm = norm_of(flat(x));
  for (std::vector<double>& row : x) {
    for (double& value : row)
      value /= norm;
  }
  for (std::size_t round = 0; round < 5; ++round) {
    const std::vector<double>& c = coefficients[round % coefficients.size()];
    const Matrix gram = times(x, transposed(x)), squared = times(gram, gram);
    Matrix b = gram;
    for (std::size_t i = 0; i < b.size(); ++i) {
      for (std::size_t j = 0; j < b.size(); ++j)
        b[i][j] = c[1] * gram[i][j] + c[2] * squared[i][j];
    }
    const Matrix bx = times(b, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x[0].size(); ++j)
        x[i][j] = c[0] * x[i][j] + bx[i][j];
    }
  }
  return x;
}

void compare(const std::string& params,
             const ParamFacts& facts,
             double momentum,
             bool nesterov,
             double weight_decay,
             double adjustment) {
  const auto rule = rule_of("Muon", params);
  test::DrivenParam ours(*rule, facts, random_floats(facts.numel(), 1));
  std::vector<double> p = widened(ours.master()), buffer(p.size());

  for (int t = 1; t <= 3; ++t) {
    const std::vector<float> grad = random_floats(facts.numel(), 100 + static_cast<unsigned>(t));
    ours.update(grad, {.lr = kLr, .grad_scale = 0.5, .step = t});
    std::vector<double> direction(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = 0.5 * grad[i];
      buffer[i] += (1.0 - momentum) * (g - buffer[i]);
      direction[i] = nesterov ? g + momentum * (buffer[i] - g) : buffer[i];
    }
    direction = flat(orthogonalized(matrix(direction, facts.rows)));
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = p[i] * (1.0 - kLr * weight_decay) - kLr * adjustment * direction[i];
  }

  expect_close(ours.master(), p, kTolerance);
  expect_close(*ours.state("momentum_buffer"), buffer, kTolerance);
}

TEST(MuonRule, FollowsThePublishedAlgorithm) {
  compare("{}", matrix_of(24, 61), 0.95, true, 0.0, 1.0);
  compare(R"({"momentum": 0.8, "nesterov": false, "weight_decay": 0.1})",
          matrix_of(61, 24),
          0.8,
          false,
          0.1,
          std::sqrt(61.0 / 24.0));
  compare(R"({"adjust_lr_fn": "match_rms_adamw"})",
          matrix_of(24, 61),
          0.95,
          true,
          0.0,
          0.2 * std::sqrt(61.0));
}

// Megatron-LM's defaults: coefficients of five rounds, and rates by the larger side.
TEST(MuonRule, HasCoefficientsForEachRoundAndOtherFactors) {
  const Coefficients quintic = {{4.0848, -6.8946, 2.9270},
                                {3.9505, -6.3029, 2.6377},
                                {3.7418, -5.5913, 2.3037},
                                {2.8769, -3.1427, 1.2046},
                                {2.8366, -3.0525, 1.2012}};
  const std::string sets = R"("ns_coefficients": [4.0848, -6.8946, 2.9270, 3.9505, -6.3029, 2.6377,
      3.7418, -5.5913, 2.3037, 2.8769, -3.1427, 1.2046, 2.8366, -3.0525, 1.2012])";
  const ParamFacts facts = matrix_of(24, 61);
  const std::vector<float> weights = random_floats(facts.numel(), 1),
                           grad = random_floats(facts.numel(), 2);
  // The first momentum is proportional to the gradient.
  const std::vector<double> direction =
      flat(orthogonalized(matrix(widened(grad), facts.rows), quintic));
  for (const auto& [params, factor] :
       {std::pair(R"("adjust_lr_fn": "spectral", "scale_factor": 0.2)", 0.2 * std::sqrt(61.0)),
        std::pair(R"("adjust_lr_fn": "unit_rms_norm")", std::sqrt(24.0 / 61.0))}) {
    const auto rule = rule_of("Muon", "{" + sets + ", \"nesterov\": false, " + params + "}");
    test::DrivenParam ours(*rule, facts, weights);
    ours.update(grad, {.lr = kLr, .step = 1});
    std::vector<double> expected = widened(weights);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] -= kLr * factor * direction[i];
    expect_close(ours.master(), expected, kTolerance);
  }
}

// Queries of two heads, keys and values of one: [groups of rows, parts in each].
TEST(MuonRule, OrthogonalizesTheProjectionsOfAttentionEachOnItsOwn) {
  constexpr std::int64_t kGroups = 2, kColumns = 20;
  const std::vector<std::int64_t> parts = {8, 4, 4};
  ParamFacts facts = matrix_of(kGroups * 16, kColumns);
  const std::vector<float> weights = random_floats(facts.numel(), 1),
                           grad = random_floats(facts.numel(), 2);
  const auto rule =
      rule_of("Muon", R"({"split_qkv": true, "nesterov": false, "adjust_lr_fn": "spectral"})");
  const auto whole = rule_of("Muon", R"({"nesterov": false, "adjust_lr_fn": "spectral"})");
  facts.row_groups = kGroups;
  facts.row_parts = parts;
  test::DrivenParam ours(*rule, facts, weights), together(*whole, facts, weights);
  ours.update(grad, {.lr = kLr, .step = 1});
  together.update(grad, {.lr = kLr, .step = 1});

  Matrix expected = matrix(widened(weights), facts.rows);
  const Matrix all = matrix(widened(grad), facts.rows);
  std::int64_t begin = 0;
  for (const std::int64_t rows : parts) {
    Matrix part;
    std::vector<std::size_t> places;
    for (std::int64_t g = 0; g < kGroups; ++g) {
      for (std::int64_t r = 0; r < rows; ++r)
        places.push_back(static_cast<std::size_t>(g * 16 + begin + r));
    }
    for (const std::size_t place : places)
      part.push_back(all[place]);
    const Matrix moved = orthogonalized(part);
    const double factor = std::sqrt(static_cast<double>(std::max(kGroups * rows, kColumns)));
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t j = 0; j < kColumns; ++j)
        expected[places[i]][j] -= kLr * factor * moved[i][j];
    }
    begin += rows;
  }
  expect_close(ours.master(), flat(expected), kTolerance);
  EXPECT_NE(ours.master(), together.master());
}

/// Products of columns of the smaller side: 1 on the diagonal, 0 elsewhere.
void expect_orthogonal(const std::vector<float>& direction, std::int64_t rows, double tolerance) {
  Matrix x = matrix(widened(direction), rows);
  if (x.size() > x[0].size()) x = transposed(x);
  const Matrix gram = times(x, transposed(x));
  for (std::size_t i = 0; i < gram.size(); ++i) {
    for (std::size_t j = 0; j < gram.size(); ++j)
      ASSERT_NEAR(gram[i][j], i == j ? 1.0 : 0.0, tolerance) << i << ", " << j;
  }
}

TEST(MuonRule, MovesAlongAnOrthogonalMatrix) {
  // Newton and Schulz's own coefficients converge to exactly orthogonal, given the rounds.
  const auto exact = rule_of("Muon", R"({"ns_coefficients": [1.5, -0.5, 0], "ns_steps": 40})");
  const auto quick = rule_of("Muon", "{}");
  for (const auto& [rows, columns] : {std::pair{24, 61}, std::pair{61, 24}}) {
    const ParamFacts facts = matrix_of(rows, columns);
    const std::vector<float> grad = random_floats(facts.numel(), 2);
    test::DrivenParam by_exact(*exact, facts, random_floats(facts.numel(), 1));
    test::DrivenParam by_quick(*quick, facts, random_floats(facts.numel(), 1));

    by_exact.update(grad, {.lr = kLr, .step = 1});
    by_quick.update(grad, {.lr = kLr, .step = 1});

    expect_orthogonal(by_exact.direction(), rows, 1e-5);  // fp32 products
    // The five rounds of Muon leave squared singular values between 0.4 and 1.5.
    expect_orthogonal(by_quick.direction(), rows, 0.6);
  }
}

TEST(MuonRule, LeavesVectorsTablesAndHeadsToAdamWAtARateOfItsOwn) {
  const auto muon =
      rule_of("Muon",
              R"({"lr": 0.02, "adam_lr": 0.005, "adam_betas": [0.8, 0.9], "adam_eps": 1e-6,
          "weight_decay": 0.7, "adam_weight_decay": 0.1})");
  const auto adamw =
      rule_of("AdamW", R"({"lr": 0.005, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1})");
  for (const ParamFacts& facts : {vector_of(1500), table_of(30, 50)}) {
    const std::vector<float> weights = random_floats(1500, 1), grad = random_floats(1500, 2);
    test::DrivenParam by_muon(*muon, facts, weights), by_adamw(*adamw, facts, weights);

    // The schedule has halved the rate.
    for (int t = 1; t <= 3; ++t) {
      by_muon.update(grad, {.lr = 0.01, .step = t});
      by_adamw.update(grad, {.lr = 0.0025, .step = t});
    }

    EXPECT_EQ(muon->scope(facts), Scope::Elementwise);
    EXPECT_EQ(by_muon.master(), by_adamw.master());
    EXPECT_EQ(by_muon.all_states(), by_adamw.all_states());
  }
  EXPECT_EQ(muon->scope(matrix_of(30, 50)), Scope::WholeTensor);
  EXPECT_DOUBLE_EQ(muon->base_lr(), 0.02);
}

TEST(MuonRule, TakesTheRateOfAGroupAsItIs) {
  const auto muon = rule_of("Muon", R"({"lr": 0.5, "adam_lr": 0.001, "betas": [0.8, 0.9]})");
  const auto adamw = rule_of("AdamW", R"({"betas": [0.8, 0.9], "eps": 1e-10, "weight_decay": 0})");
  const std::vector<float> weights = random_floats(60, 1), grad = random_floats(60, 2);
  test::DrivenParam by_muon(*muon, vector_of(60), weights),
      by_adamw(*adamw, vector_of(60), weights);
  by_muon.lr_scale = 0.25;
  test::DrivenParam hidden(*muon, matrix_of(6, 10), weights), slower = hidden;
  hidden.lr_scale = 0.25;

  by_muon.update(grad, {.lr = 0.5, .step = 1});
  by_adamw.update(grad, {.lr = 0.125, .step = 1});
  hidden.update(grad, {.lr = 0.5, .step = 1});
  slower.update(grad, {.lr = 0.125, .step = 1});

  EXPECT_EQ(by_muon.master(), by_adamw.master());
  EXPECT_EQ(hidden.master(), slower.master());
}

/// A vector and a hidden matrix after two updates, the schedule at `lr`.
std::pair<std::vector<float>, std::vector<float>> moved(const std::string& params, double lr) {
  const auto rule = rule_of("Muon", params);
  test::DrivenParam vector(*rule, vector_of(60), random_floats(60, 1));
  test::DrivenParam hidden(*rule, matrix_of(6, 10), random_floats(60, 1));
  for (int t = 1; t <= 2; ++t) {
    const std::vector<float> grad = random_floats(60, 10 + static_cast<unsigned>(t));
    vector.update(grad, {.lr = lr, .step = t});
    hidden.update(grad, {.lr = lr, .step = t});
  }
  return {vector.master(), hidden.master()};
}
std::vector<float> moved_by_adam(const std::string& type, const std::string& params, double lr) {
  const auto rule = rule_of(type, params);
  test::DrivenParam vector(*rule, vector_of(60), random_floats(60, 1));
  for (int t = 1; t <= 2; ++t)
    vector.update(random_floats(60, 10 + static_cast<unsigned>(t)), {.lr = lr, .step = t});
  return vector.master();
}

// DeepSpeed: the shared value, then muon_lr and adam_lr; betas and eps are AdamW's.
TEST(MuonRule, ReadsDeepSpeedsParametersAsDeepSpeedDoes) {
  const std::string own = R"("betas": [0.9, 0.95], "eps": 1e-10)";

  const auto shared = moved(R"({"lr": 0.01, "weight_decay": 0.1})", 0.01);
  EXPECT_EQ(shared.first,
            moved_by_adam("AdamW", R"({"lr": 0.01, "weight_decay": 0.1, )" + own + "}", 0.01));
  EXPECT_EQ(shared.second,
            moved(R"({"lr": 0.01, "weight_decay": 0.1, "adam_lr": 1e-5})", 0.01).second);

  const auto apart = moved(R"({"lr": 0.01, "muon_lr": 0.04})", 0.04);
  EXPECT_DOUBLE_EQ(rule_of("Muon", R"({"lr": 0.01, "muon_lr": 0.04})")->base_lr(), 0.04);
  EXPECT_EQ(apart.first, moved(R"({"lr": 0.01, "adam_lr": 0.01})", 0.01).first);
  EXPECT_EQ(apart.second, moved(R"({"lr": 0.04})", 0.04).second);

  const auto all =
      moved(R"({"muon_lr": 0.02, "adam_lr": 0.005, "momentum": 0.9, "weight_decay": 0.2,
      "betas": [0.8, 0.9], "eps": 1e-6, "ns_method": "standard", "adam_w_mode": false})",
            0.02);
  EXPECT_EQ(all.first,
            moved_by_adam("Adam",
                          R"({"lr": 0.005, "weight_decay": 0.2, "betas": [0.8, 0.9], "eps": 1e-6,
                              "adam_w_mode": false})",
                          0.005));
  EXPECT_EQ(
      all.second,
      moved(R"({"lr": 0.02, "momentum": 0.9, "weight_decay": 0.2, "ns_method": "gram"})", 0.02)
          .second);
}

TEST(MuonRule, HasAdamWsWeightDecayWhereHiddenMatricesHaveNone) {
  EXPECT_EQ(rule_of("Muon", R"({"adam_weight_decay": 0.25})")->base_weight_decay(), 0.25);
  EXPECT_EQ(
      rule_of("Muon", R"({"weight_decay": 0.5, "adam_weight_decay": 0.25})")->base_weight_decay(),
      0.5);
}

TEST(MuonRule, HasDeepSpeedsDefaultsWhereNothingIsSaid) {
  EXPECT_DOUBLE_EQ(rule_of("Muon", "{}")->base_lr(), 0.02);
  EXPECT_EQ(
      moved("{}", 0.02).first,
      moved_by_adam(
          "AdamW", R"({"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0})", 3e-4));
}

TEST(MuonRule, RefusesTwoNamesThatDiffer) {
  EXPECT_TRUE(make_rule("Muon", R"({"eps": 1e-6, "adam_eps": 1e-6, "betas": [0.8, 0.9],
                               "adam_betas": [0.8, 0.9]})")
                  .problems.empty());
  const auto made = make_rule("Muon", R"({"eps": 1e-6, "adam_eps": 1e-5, "betas": [0.8, 0.9],
                                     "adam_betas": [0.8, 0.95], "fp32_optimizer_states": false,
                                     "ns_method": "svd"})");
  EXPECT_THAT(made.problems.list(), testing::SizeIs(4));
}

TEST(MuonRule, SurvivesAGradientOfZeros) {
  const auto rule = rule_of("Muon", "{}");
  test::DrivenParam param(*rule, matrix_of(3, 5), random_floats(15, 1));
  const std::vector<float> before = param.master();

  param.update(std::vector<float>(15), {.lr = kLr, .step = 1});

  EXPECT_EQ(param.master(), before);
}

TEST(MuonRule, RefusesWhatMakesNoSense) {
  EXPECT_THAT(make_rule("Muon", R"({"ns_coefficients": [1, 2], "momentum": 1, "adam_betas": [0.9],
                               "ns_steps": 0, "adjust_lr_fn": "orignal", "lr": 0})")
                  .problems.list(),
              testing::SizeIs(6));
}

}  // namespace
}  // namespace tessera::optim
