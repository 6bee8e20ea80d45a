// SPDX-License-Identifier: Apache-2.0
// Learns from trials by how much predictions of time are wrong for this model on this machine.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "tessera/tune/space.h"

namespace tessera::tune {

/// The logarithm of measured over predicted time as a linear function of a few properties of a
/// choice, with a normal prior: a Bayesian linear regression (Bishop 2006, section 3.3). Without
/// trials it predicts no error, with the uncertainty of the machine's description.
class Residual {
 public:
  static constexpr int kFeatures = 8;
  /// `uncertainty`: DescribedMachine::uncertainty.
  explicit Residual(double uncertainty);
  /// Adds a trial: its time over the predicted one, and the relative error of the measurement.
  void add(const Choice& choice, double ratio, double error);
  /// The expected logarithm of the ratio, and its standard deviation.
  [[nodiscard]] std::pair<double, double> at(const Choice& choice) const;

 private:
  using Vector = std::array<double, kFeatures>;
  using Matrix = std::array<Vector, kFeatures>;
  static Vector features(const Choice& choice);
  /// The solution of precision_ x = right.
  [[nodiscard]] Vector solve(Vector right) const;

  Matrix precision_{};  ///< inverse of the covariance of the weights
  Vector moment_{};
  double noise_ = 0;  ///< deviation of what the properties do not explain
};

}  // namespace tessera::tune
