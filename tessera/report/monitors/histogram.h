// SPDX-License-Identifier: Apache-2.0
// Distributions of values in buckets whose limits grow by a tenth, as in TensorBoard, so that
// counts of several ranks can be added.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tessera::report {

/// Counts of values between limits, as TensorBoard's histograms show them.
struct Histogram {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;  ///< upper limit of each bucket, ascending
  std::vector<double> counts;
};
struct NamedHistogram {
  std::string name;  ///< "weights/blocks.0.attn.weight"
  Histogram histogram;
};

/// Counts of finite values per bucket. The buckets are the same for all counts: ascending,
/// symmetric around 0, from 1e-12 to 1e6, and one for larger values on each side.
class BucketCounts {
 public:
  BucketCounts();
  /// Adds values; those that are not finite are left out. Cost: a logarithm per value.
  void add(std::span<const float> values, double factor = 1.0);
  /// The counts and sums, all of which may be added over ranks.
  [[nodiscard]] std::vector<double>& sums() { return sums_; }
  /// Minus the minimum and the maximum, both of which may be reduced by their maximum over ranks;
  /// minus infinity if there are no values.
  [[nodiscard]] std::vector<double>& extremes() { return extremes_; }
  /// Only the buckets between the first and the last one that are not empty.
  [[nodiscard]] Histogram histogram() const;

 private:
  std::vector<double> sums_;  ///< number, sum, sum of squares, then the counts
  std::vector<double> extremes_;
};

}  // namespace tessera::report
