// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/residual.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::tune {
namespace {

// Deviations of the prior: of the weight that all choices share, in units of the machine's
// uncertainty, and of the others.
constexpr double kShared = 3.0, kOthers = 0.5;
// The rest that the properties do not explain, in the same unit.
constexpr double kNoise = 0.25;

double square(double x) {
  return x * x;
}

}  // namespace

Residual::Residual(double uncertainty) {
  for (std::size_t i = 0; i < kFeatures; ++i)
    precision_[i][i] = 1 / square(uncertainty * (i == 0 ? kShared : kOthers));
  noise_ = kNoise * uncertainty;
}

Residual::Vector Residual::features(const Choice& choice) {
  const auto log2 = [](auto value) { return std::log2(static_cast<double>(value)); };
  return {1.0,
          log2(choice.tensor),
          log2(choice.pipeline),
          log2(choice.context),
          log2(choice.micro) / 2,
          choice.zero == 3 ? 1.0 : 0.0,
          choice.recompute == Recompute::Full   ? 1.0
          : choice.recompute == Recompute::None ? 0.0
                                                : 0.5,
          log2(choice.ranks)};
}

void Residual::add(const Choice& choice, double ratio, double error) {
  const Vector x = features(choice);
  const double weight = 1 / (square(noise_) + square(error));
  for (std::size_t i = 0; i < kFeatures; ++i) {
    for (std::size_t k = 0; k < kFeatures; ++k)
      precision_[i][k] += weight * x[i] * x[k];
    moment_[i] += weight * x[i] * std::log(ratio);
  }
}

Residual::Vector Residual::solve(Vector right) const {
  // Gauss's elimination: the matrix is symmetric and positive definite.
  Matrix a = precision_;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    for (std::size_t k = i + 1; k < kFeatures; ++k) {
      const double factor = a[k][i] / a[i][i];
      for (std::size_t j = i; j < kFeatures; ++j)
        a[k][j] -= factor * a[i][j];
      right[k] -= factor * right[i];
    }
  }
  for (std::size_t i = kFeatures; i-- > 0;) {
    for (std::size_t j = i + 1; j < kFeatures; ++j)
      right[i] -= a[i][j] * right[j];
    right[i] /= a[i][i];
  }
  return right;
}

std::pair<double, double> Residual::at(const Choice& choice) const {
  const Vector x = features(choice), mean = solve(moment_), spread = solve(x);
  double expected = 0, variance = square(noise_);
  for (std::size_t i = 0; i < kFeatures; ++i) {
    expected += mean[i] * x[i];
    variance += spread[i] * x[i];
  }
  return {expected, std::sqrt(std::max(variance, 0.0))};
}

}  // namespace tessera::tune
