// SPDX-License-Identifier: Apache-2.0
// Layouts whose sums are cut elsewhere, held against one rank with the same micro-batches.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::testing {

// What the design promises; the loss at step 10, the gradient of the first step.
inline constexpr double kLoss = 2e-5, kGradient = 2e-6;
inline constexpr double kNarrowLoss = 2e-3;
inline const double kNarrowGradient = 2e-2 * std::sqrt(2.0 / 12);  // of two layers

using Gradient = std::vector<std::pair<std::string, std::vector<float>>>;

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values)
    sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

/// A tensor whose gradient is zero in theory (key biases) is noise: the floor is a thousandth of
/// the whole gradient.
inline void expect_close(const Gradient& reference, const Gradient& other, double tolerance) {
  double whole = 0;
  for (const auto& [name, values] : reference)
    whole += norm(values) * norm(values);
  whole = std::sqrt(whole);
  ASSERT_EQ(reference.size(), other.size());
  for (std::size_t t = 0; t < reference.size(); ++t) {
    ASSERT_EQ(reference[t].first, other[t].first);
    ASSERT_EQ(reference[t].second.size(), other[t].second.size());
    std::vector<float> difference = other[t].second;
    for (std::size_t i = 0; i < difference.size(); ++i)
      difference[i] -= reference[t].second[i];
    EXPECT_LE(norm(difference), tolerance * std::max(norm(reference[t].second), 1e-3 * whole))
        << reference[t].first;
  }
}

inline void expect_close(const Trace& reference, const Trace& other, double tolerance) {
  ASSERT_EQ(reference.losses.size(), other.losses.size());
  for (std::size_t i = 0; i < reference.losses.size(); ++i) {
    EXPECT_NEAR(other.losses[i], reference.losses[i], tolerance * reference.losses[i]);
    EXPECT_NEAR(other.grad_norms[i], reference.grad_norms[i], 10 * tolerance);
  }
  for (std::size_t i = 0; i < reference.eval_losses.size(); ++i)
    EXPECT_NEAR(other.eval_losses[i], reference.eval_losses[i], tolerance * reference.losses[0]);
}

struct Bounds {
  double gradient = kGradient, loss = kLoss;
};

/// Against one rank with the same micro-batches.
inline void expect_same(const TinyRun& run,
                        const std::vector<Layout>& layouts,
                        Bounds bounds = {}) {
  constexpr std::int64_t kSteps = 10;
  TinyRun unclipped = run;  // a gradient is read from the first moment
  unclipped.set("gradient_clipping", "0");
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(std::to_string(layout.ranks) + " ranks, tensor " + layout.mode + " " +
                 std::to_string(layout.tensor) + (layout.sequence ? " and sequence" : "") +
                 ", context " + std::to_string(layout.context) + " " + layout.context_mode +
                 ", stage " + std::to_string(layout.stage));
    const int stages = layout.pipeline.empty() ? 1 : std::stoi(layout.pipeline);
    const Layout one{.ranks = 1,
                     .accumulation = layout.accumulation * layout.ranks / layout.tensor /
                                     layout.context / stages,
                     .micro_batch = layout.micro_batch,
                     .stage = 0};
    expect_close(unclipped.first_gradient(one), unclipped.first_gradient(layout), bounds.gradient);
    expect_close(run.train(one, kSteps), run.train(layout, kSteps), bounds.loss);
  }
}

}  // namespace tessera::testing
