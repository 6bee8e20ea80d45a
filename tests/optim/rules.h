// SPDX-License-Identifier: Apache-2.0
// Rules from their parameters, random numbers, and comparisons, for the tests of the rules.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/rule_driver.h"
#include <gtest/gtest.h>

#include "tessera/base/philox.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

struct MadeRule {
  std::unique_ptr<Rule> rule;
  config::Problems problems;
};

inline MadeRule make_rule(const std::string& type, const std::string& params) {
  MadeRule made;
  config::Origins origins;
  made.rule = rule_factory(type)(json::parse(params, "config.json"), made.problems, origins);
  return made;
}

/// Makes a rule from valid parameters.
inline std::unique_ptr<Rule> rule_of(const std::string& type, const std::string& params) {
  MadeRule made = make_rule(type, params);
  made.problems.raise();
  return std::move(made.rule);
}

inline ParamFacts vector_of(std::int64_t numel) {
  return {.name = "bias", .rows = 1, .columns = numel};
}
inline ParamFacts matrix_of(std::int64_t rows, std::int64_t columns) {
  return {.name = "weight", .rows = rows, .columns = columns, .matrix = true};
}
inline ParamFacts table_of(std::int64_t rows, std::int64_t columns) {
  return {.name = "table", .rows = rows, .columns = columns, .matrix = true, .embedding = true};
}

/// Uniform in [-scale, scale), the same for the same seed.
inline std::vector<float> random_floats(std::int64_t n, std::uint64_t seed, float scale = 1.0F) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i) {
    const float share = uniform_float(Philox{seed}(static_cast<std::uint64_t>(i))[0]);
    out.push_back(scale * (2.0F * share - 1.0F));
  }
  return out;
}

inline std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// Every element within `tolerance` of the largest expected one.
inline void expect_close(const std::vector<float>& actual,
                         const std::vector<double>& expected,
                         double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0.0;
  for (const double value : expected)
    largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << "element " << i;
}

inline double norm_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values)
    sum += value * value;
  return std::sqrt(sum);
}

}  // namespace tessera::optim
