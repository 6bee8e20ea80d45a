// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The lowest cost of the first i blocks in j parts, and the first block of the last part.
struct Cell {
  double cost = kNever;
  int begin = 0;
};

/// Finds the partition that minimizes fold(cost of the previous parts, weight of the part) at the
/// end; parts heavier than `limit`, and parts that do not fit, are excluded. Returns an empty
/// vector if no partition remains.
template <class Fold>
std::vector<int> cut(const std::vector<double>& sums,
                     int parts,
                     double limit,
                     const std::function<bool(int, int, int)>& fits,
                     Fold fold) {
  const int n = static_cast<int>(sums.size()) - 1;
  const auto width = static_cast<std::size_t>(n) + 1;
  std::vector<Cell> cells((static_cast<std::size_t>(parts) + 1) * width);
  const auto at = [&](int j, int i) -> Cell& {
    return cells[static_cast<std::size_t>(j) * width + static_cast<std::size_t>(i)];
  };
  at(0, 0).cost = 0;
  for (int j = 1; j <= parts; ++j) {
    for (int i = j; i <= n; ++i) {
      for (int k = j - 1; k < i; ++k) {
        const double weight = sums[static_cast<std::size_t>(i)] - sums[static_cast<std::size_t>(k)];
        if (at(j - 1, k).cost == kNever || weight > limit || !fits(j - 1, k, i)) continue;
        const double cost = fold(at(j - 1, k).cost, weight);
        if (cost < at(j, i).cost) at(j, i) = {cost, k};
      }
    }
  }
  if (at(parts, n).cost == kNever) return {};
  std::vector<int> bounds(static_cast<std::size_t>(parts) + 1, n);
  for (int j = parts; j > 0; --j)
    bounds[static_cast<std::size_t>(j) - 1] = at(j, bounds[static_cast<std::size_t>(j)]).begin;
  return bounds;
}

double heaviest(const std::vector<double>& sums, const std::vector<int>& bounds) {
  double most = 0;
  for (std::size_t j = 0; j + 1 < bounds.size(); ++j)
    most = std::max(
        most,
        sums[static_cast<std::size_t>(bounds[j + 1])] - sums[static_cast<std::size_t>(bounds[j])]);
  return most;
}

}  // namespace

std::vector<int> uniform_bounds(int n, int parts) {
  TESSERA_ASSERT(n >= 0 && parts >= 1);
  std::vector<int> bounds;
  for (int i = 0; i <= parts; ++i)
    bounds.push_back(n <= parts ? std::min(i, n) : i * (n / parts) + std::min(i, n % parts));
  return bounds;
}

std::vector<int> uniform_last_bounds(int n, int stages, int chunks) {
  TESSERA_ASSERT(n >= 0 && stages >= 1 && chunks >= 1 && n % chunks == 0);
  const int each = n / chunks, first_longer = stages - each % stages;
  std::vector<int> bounds = {0};
  for (int part = 0; part < stages * chunks; ++part)
    bounds.push_back(bounds.back() + each / stages + (part % stages >= first_longer ? 1 : 0));
  return bounds;
}

std::vector<int> balanced_bounds(std::span<const double> weights, int parts) {
  return balanced_bounds(weights, parts, [](int, int, int) { return true; });
}

std::vector<int> balanced_bounds(std::span<const double> weights,
                                 int parts,
                                 const std::function<bool(int, int, int)>& fits) {
  TESSERA_ASSERT(parts >= 1 && parts <= static_cast<int>(weights.size()));
  std::vector<double> sums = {0.0};
  for (const double weight : weights)
    sums.push_back(sums.back() + weight);
  const std::vector<int> minimax = cut(sums, parts, kNever, fits, [](double before, double weight) {
    return std::max(before, weight);
  });
  if (minimax.empty()) return {};
  return cut(sums, parts, heaviest(sums, minimax), fits, [](double before, double weight) {
    return before + weight * weight;
  });
}

}  // namespace tessera::parallel
