// SPDX-License-Identifier: Apache-2.0
// The factors of rotary frequencies in GGUF files, and the rule that produces them.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/gguf/reader.h"

namespace tessera::interop {
namespace {

/// Periods longer than original / low are stretched by the whole factor; those shorter than
/// original / high are kept.
struct Rule {
  double factor = 1, low = 1, high = 4, original = 8192;

  [[nodiscard]] double of(double period) const {
    if (period < original / high) return 1;
    if (period > original / low) return factor;
    const double share = (original / period - low) / (high - low);
    return 1 / ((1 - share) / factor + share);
  }
};

double period_of(std::size_t i, std::size_t count, double theta) {
  return 2 * std::numbers::pi *
         std::pow(theta, static_cast<double>(i) / static_cast<double>(count));
}

std::vector<float> factors_of(const Rule& rule, std::size_t count, double theta) {
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(rule.of(period_of(i, count, theta))));
  return out;
}

bool fits(const Rule& rule, const std::vector<float>& factors, double theta) {
  return same_factors(factors, factors_of(rule, factors.size(), theta));
}

/// Finds the rule from the factors between both ends: the share is linear in the frequency. Low is
/// set to 1, because scaling all three numbers changes nothing.
std::optional<Rule> through(const std::vector<float>& factors, double factor, double theta) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] <= 1.0001F || factors[i] >= static_cast<float>(factor) * 0.9999F) continue;
    const double frequency = 1 / period_of(i, factors.size(), theta);
    const double share = (1 / static_cast<double>(factors[i]) - 1 / factor) / (1 - 1 / factor);
    n += 1;
    x += frequency;
    y += share;
    xx += frequency * frequency;
    xy += frequency * share;
  }
  const double spread = n * xx - x * x;
  if (n < 2 || spread <= 0) return std::nullopt;
  const double slope = (n * xy - x * y) / spread, offset = (y - slope * x) / n;
  if (!(offset < 0) || !(slope > 0)) return std::nullopt;
  Rule out{.factor = factor, .low = 1, .high = 1 - 1 / offset};
  out.high = std::round(out.high * 1000) / 1000;
  out.original = std::round(slope * (out.high - 1));
  return out;
}

}  // namespace

json::Value rotary_scaling_of(const std::vector<float>& factors,
                              double theta,
                              const std::string& what) {
  const double largest = factors.empty() ? 1 : *std::max_element(factors.begin(), factors.end());
  if (fits({.factor = 1}, factors, theta)) return {};
  // The published numbers are tried first, because with few frequencies between the ends other
  // numbers would fit as well.
  std::optional<Rule> rule = Rule{.factor = largest};
  // Llama 4's leaves nothing between the ends.
  if (!fits(*rule, factors, theta)) rule = Rule{.factor = largest, .low = 1, .high = 1};
  if (!fits(*rule, factors, theta)) rule = through(factors, largest, theta);
  TESSERA_REQUIRE(
      rule && rule->original >= 1 && rule->high >= rule->low && fits(*rule, factors, theta),
      Unsupported,
      fmt::format("{}: the factors of its rotary frequencies follow no rule that is "
                  "built",
                  what),
      "take a model with the published scaling \"llama3\", or without one");
  return json::Value::object({{"rope_type", json::Value::string("llama3")},
                              {"factor", json::Value::number(rule->factor)},
                              {"low_freq_factor", json::Value::number(rule->low)},
                              {"high_freq_factor", json::Value::number(rule->high)},
                              {"original_max_position_embeddings",
                               json::Value::integer(static_cast<std::int64_t>(rule->original))}});
}

std::vector<float> rotary_factors(const json::Value& scaling, double theta, std::int64_t channels) {
  const Rule rule{
      .factor = number_at(scaling, "factor").value_or(1),
      .low = number_at(scaling, "low_freq_factor").value_or(1),
      .high = number_at(scaling, "high_freq_factor").value_or(4),
      .original = number_at(scaling, "original_max_position_embeddings").value_or(8192)};
  return factors_of(rule, static_cast<std::size_t>(channels / 2), theta);
}

bool same_factors(const std::vector<float>& a, const std::vector<float>& b) {
  // Files come from several programs with different fp32 arithmetic.
  constexpr float kTolerance = 1e-4F;
  return std::ranges::equal(a, b, [](float one, float other) {
    return std::fabs(one - other) <= kTolerance * std::fabs(other);
  });
}

}  // namespace tessera::interop
