// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/sinkhorn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::ops {
namespace {

constexpr double kTolerance = 1e-4, kEps = 1e-8;
/// The largest exponent, so that products of exponentials are finite in fp64.
constexpr double kMostExponent = 300.0;
/// Published training runs need some tens; logits that are far apart would need very many.
constexpr int kMostRounds = 1000;

/// Adds the columns of the matrix whose columns are scaled by `factors` for the sums of rows, and
/// whose rows are then scaled to the sum 1 / `tokens`.
void add_scaled_rows(std::span<const double> costs_NE,
                     std::span<const double> factors_E,
                     double tokens,
                     std::span<double> columns_E) {
  const std::size_t E = factors_E.size();
  for (std::size_t begin = 0; begin < costs_NE.size(); begin += E) {
    const std::span<const double> row = costs_NE.subspan(begin, E);
    double sum = 0.0;
    for (std::size_t e = 0; e < E; ++e)
      sum += factors_E[e] * row[e];
    const double factor = 1.0 / (tokens * (sum + kEps));
    for (std::size_t e = 0; e < E; ++e)
      columns_E[e] += factor * row[e];
  }
}

}  // namespace

std::vector<double> sinkhorn_shifts(const float* logits_NE,
                                    std::int64_t num_tokens,
                                    std::int64_t num_experts,
                                    const SumOverRanks& sum) {
  const auto E = static_cast<std::size_t>(num_experts),
             values = static_cast<std::size_t>(num_tokens) * E;
  double tokens = static_cast<double>(num_tokens);
  if (sum) sum({&tokens, 1});
  std::vector<double> costs(values);
  std::transform(logits_NE, logits_NE + values, costs.begin(), [](float logit) {
    return std::exp(std::min(static_cast<double>(logit), kMostExponent));
  });
  std::vector<double> factors(E, 1.0), columns(E);
  for (int round = 0; round < kMostRounds; ++round) {
    std::fill(columns.begin(), columns.end(), 0.0);
    add_scaled_rows(costs, factors, tokens, columns);
    if (sum) sum(columns);
    double change = 0.0;
    for (std::size_t e = 0; e < E; ++e) {
      const double next = 1.0 / (static_cast<double>(E) * (columns[e] + kEps));
      change += std::abs(next - factors[e]);
      factors[e] = next;
    }
    if (!(change / static_cast<double>(E) > kTolerance)) break;
  }
  std::transform(factors.begin(), factors.end(), factors.begin(), [](double value) {
    return std::log(value);
  });
  return factors;
}

}  // namespace tessera::ops
