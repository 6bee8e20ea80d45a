// SPDX-License-Identifier: Apache-2.0
// Layouts that split sums differently, compared with one rank with the same micro-batches.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {

// The design's bounds for the loss at step 10 and for the gradient of the first step.
inline constexpr double kLoss = 2e-5, kGradient = 2e-6;
inline constexpr double kNarrowLoss = 2e-3;
inline const double kNarrowGradient = 2e-2 * std::sqrt(2.0 / 12);  // for a model of two layers

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

/// One rank with the same micro-batches.
inline Layout one_rank(const Layout& layout) {
  const int stages = layout.pipeline.empty() ? 1 : std::stoi(layout.pipeline);
  return {
      .ranks = 1,
      .accumulation = layout.accumulation * layout.ranks / layout.tensor / layout.context / stages,
      .micro_batch = layout.micro_batch,
      .stage = 0};
}

inline std::string text_of(const Layout& layout) {
  return std::to_string(layout.ranks) + " ranks, tensor " + layout.mode + " " +
         std::to_string(layout.tensor) + (layout.sequence ? " and sequence" : "") + ", context " +
         std::to_string(layout.context) + " " + layout.context_mode + ", stage " +
         std::to_string(layout.stage);
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
    SCOPED_TRACE(text_of(layout));
    const Layout one = one_rank(layout);
    expect_close(unclipped.first_gradient(one), unclipped.first_gradient(layout), bounds.gradient);
    expect_close(run.train(one, kSteps), run.train(layout, kSteps), bounds.loss);
  }
}

/// Norms count every element once, replicated ones too; Adafactor and Muon see whole matrices.
inline void expect_rules_same(const std::vector<std::string>& rules,
                              const std::vector<Layout>& layouts) {
  for (const std::string& rule : rules) {
    TinyRun run;
    // Adafactor computes its own learning rate.
    const std::string params = rule == "Adafactor" ? "{}" : R"({"lr": 1e-3})";
    run.set("optimizer", R"({"type": ")" + rule + R"(", "params": )" + params + "}");
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(rule + ", " + text_of(layout));
      expect_close(run.train(one_rank(layout), 10), run.train(layout, 10), kLoss);
    }
  }
}

inline void expect_clipping_same(const std::vector<Layout>& layouts) {
  TinyRun run;
  run.set("gradient_clipping", "0.1");
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(text_of(layout));
    const Trace one = run.train(one_rank(layout), 3), other = run.train(layout, 3);
    ASSERT_GT(one.grad_norms[0], 0.2);
    EXPECT_NEAR(other.grad_norms[0], one.grad_norms[0], 1e-6 * one.grad_norms[0]);
    expect_close(one, other, kLoss);
  }
}

inline void expect_recompute_changes_nothing(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    for (const char* kind : {"full", "selective"}) {
      SCOPED_TRACE(kind + (", " + text_of(layout)));
      TinyRun run;
      const Trace stored = run.train(layout, 3);
      run.set("activation_checkpointing.granularity", std::string("\"") + kind + "\"");

      expect_same_bits(stored, run.train(layout, 3));
    }
  }
}

/// Weights and moments are restored whichever layout wrote them, and training continues as if it
/// had not been interrupted.
inline void expect_checkpoints_read_by_all(const TinyRun& run, const std::vector<Layout>& layouts) {
  for (const Layout& writer : layouts) {
    const files::TempDir folder;
    const Trace written = run.train(writer, 3, folder.path());
    const auto saved = *checkpoint::newest(folder.path());
    for (const Layout& reader : layouts) {
      SCOPED_TRACE(text_of(writer) + " read by " + text_of(reader));
      EXPECT_EQ(run.train(reader, 3, {}, saved).digest, written.digest);
    }
    const Trace whole = run.train(writer, 8), rest = run.train(layouts[1], 8, {}, saved);
    for (std::size_t i = 0; i < rest.losses.size(); ++i)
      EXPECT_NEAR(rest.losses[i], whole.losses[3 + i], kLoss * whole.losses[3 + i]);
  }
}

}  // namespace tessera::test
