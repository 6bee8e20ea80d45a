// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tessera::report {
namespace {

constexpr double kSmallest = 1e-12, kGrowth = 1.1;
/// Positive limits: kSmallest x kGrowth^i for i below this number; the last one exceeds 1e6.
constexpr std::size_t kLimits = 436;
/// The others: both signs, zero, and all larger values.
constexpr std::size_t kBuckets = 2 * kLimits + 2;
constexpr std::size_t kHeld = 3;  ///< numbers in front of the counts

/// Upper limits of the buckets; a value belongs to the first one whose limit is above it.
const std::vector<double>& limits() {
  static const std::vector<double> all = [] {
    std::vector<double> positive;
    for (std::size_t i = 0; i < kLimits; ++i)
      positive.push_back(kSmallest * std::pow(kGrowth, static_cast<double>(i)));
    std::vector<double> out;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit)
      out.push_back(-*limit);
    out.push_back(0.0);
    out.insert(out.end(), positive.begin(), positive.end());
    out.push_back(std::numeric_limits<double>::max());
    return out;
  }();
  return all;
}

/// The index of the bucket of `value`.
std::size_t bucket_of(double value) {
  const std::vector<double>& all = limits();
  // The logarithm finds the place up to rounding; the comparisons make it exact.
  const double power = std::log(std::max(std::abs(value), kSmallest) / kSmallest);
  static const double growth = std::log(kGrowth);
  const auto step =
      static_cast<std::size_t>(std::clamp(power / growth, 0.0, static_cast<double>(kLimits - 1)));
  std::size_t at = value < 0 ? kLimits - 1 - step : kLimits + 1 + step;
  while (at > 0 && value < all[at - 1])
    --at;
  while (at + 1 < kBuckets && value >= all[at])
    ++at;
  return at;
}

}  // namespace

BucketCounts::BucketCounts()
    : sums_(kHeld + kBuckets), extremes_(2, -std::numeric_limits<double>::infinity()) {}

void BucketCounts::add(std::span<const float> values, double factor) {
  for (const float stored : values) {
    const double value = static_cast<double>(stored) * factor;
    if (!std::isfinite(value)) continue;
    sums_[0] += 1;
    sums_[1] += value;
    sums_[2] += value * value;
    sums_[kHeld + bucket_of(value)] += 1;
    extremes_[0] = std::max(extremes_[0], -value);
    extremes_[1] = std::max(extremes_[1], value);
  }
}

Histogram BucketCounts::histogram() const {
  Histogram out;
  if (sums_[0] == 0) return out;
  out.num = sums_[0];
  out.sum = sums_[1];
  out.sum_squares = sums_[2];
  out.min = -extremes_[0];
  out.max = extremes_[1];
  const auto full = [](double count) { return count > 0; };
  const auto counts = sums_.begin() + kHeld;
  const auto first = std::find_if(counts, sums_.end(), full);
  const auto last = std::find_if(sums_.rbegin(), sums_.rend(), full).base();
  out.counts.assign(first, last);
  const auto begin = limits().begin() + (first - counts);
  out.limits.assign(begin, begin + (last - first));
  return out;
}

}  // namespace tessera::report
