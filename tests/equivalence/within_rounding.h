// SPDX-License-Identifier: Apache-2.0
// Layouts that split sums differently, compared with one rank with the same micro-batches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
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

/// The step at which the design bounds the loss.
inline constexpr std::int64_t kStepOfBound = 10;

struct Bounds {
  double gradient = kGradient, loss = kLoss;
  std::int64_t steps = 5;  ///< that are compared
};

/// The results of one rank with the micro-batches of a layout: computed once for all layouts with
/// the same micro-batches.
template <class Result>
class OfOneRank {
 public:
  template <class Make>
  const Result& of(const Layout& layout, const Make& make) {
    const Layout one = one_rank(layout);
    const auto [found, missing] = results_.try_emplace({one.accumulation, one.micro_batch});
    if (missing) found->second = make(one);
    return found->second;
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, Result> results_;
};

/// Checks each layout against one rank with the same micro-batches: the first gradient, and the
/// losses of `bounds.steps` steps.
inline void expect_same(const TinyRun& run,
                        const std::vector<Layout>& layouts,
                        Bounds bounds = {}) {
  TinyRun unclipped = run;  // a gradient is read from the first moment
  unclipped.set("gradient_clipping", "0");
  const auto gradient_in = [&](const Layout& in) { return unclipped.first_gradient(in); };
  const auto train_in = [&](const Layout& in) { return run.train(in, bounds.steps); };
  OfOneRank<Gradient> gradients;
  OfOneRank<Trace> traces;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(text_of(layout));
    expect_close(gradients.of(layout, gradient_in), gradient_in(layout), bounds.gradient);
    expect_close(traces.of(layout, train_in), train_in(layout), bounds.loss);
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
    const auto train_in = [&](const Layout& in) { return run.train(in, 5); };
    OfOneRank<Trace> traces;
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(rule + ", " + text_of(layout));
      expect_close(traces.of(layout, train_in), train_in(layout), kLoss);
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

/// Each layout restores the weights and moments that the layout before it in the list wrote, and
/// the first one those of the last; training continues there as if it had not been interrupted. A
/// checkpoint has the same tensors whichever layout wrote it (checkpoint_matrix_test.cpp), so that
/// more pairs would not find more.
inline void expect_checkpoints_read_by_all(const TinyRun& run, const std::vector<Layout>& layouts) {
  constexpr std::int64_t kBefore = 3, kAll = 6;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout &writer = layouts[i], &reader = layouts[(i + 1) % layouts.size()];
    SCOPED_TRACE(text_of(writer) + " read by " + text_of(reader));
    const files::TempDir folder;
    const Trace written = run.train(writer, kBefore, folder.path());
    const auto saved = *checkpoint::newest(folder.path());

    EXPECT_EQ(run.train(reader, kBefore, {}, saved).digest, written.digest);
    const Trace whole = run.train(writer, kAll), rest = run.train(reader, kAll, {}, saved);
    ASSERT_EQ(rest.losses.size(), static_cast<std::size_t>(kAll - kBefore));
    for (std::size_t step = 0; step < rest.losses.size(); ++step) {
      const double expected = whole.losses[kBefore + step];
      EXPECT_NEAR(rest.losses[step], expected, kLoss * expected);
    }
  }
}

}  // namespace tessera::test
