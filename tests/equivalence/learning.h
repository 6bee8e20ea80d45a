// SPDX-License-Identifier: Apache-2.0
// How much loss training in bf16 costs, on real text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "support/source_dir.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {

/// `model` on Shakespeare's plays, byte by byte, as it is trained in earnest: 200 steps with a
/// warm-up, and no dropout.
inline TinyRun shakespeare_run(const std::string& model, const std::string& lr, int length) {
  TinyRun run;
  run.set("model", model)
      .set("data.train",
           std::string("\"") + test::source_dir().string() + "/examples/data/shakespeare.txt\"")
      .set("data.sequence_length", std::to_string(length))
      .set("optimizer.params.lr", lr)
      .set(
          "scheduler",
          R"({"type": "WarmupCosine", "params": {"warmup_num_steps": 20, "total_num_steps": 200}})")
      .set("trainer.max_steps", "200");
  return run;
}

/// Losses of bf16 stay within half a percent of those of fp32, step by step, while the model
/// learns.
inline void expect_bf16_learns_alike(TinyRun run, const Layout& layout) {
  constexpr std::int64_t kSteps = 200;
  constexpr double kLossShare = 0.005;
  const Trace wide = run.train(layout, kSteps);
  const Trace narrow = run.set("bf16.enabled", "true").train(layout, kSteps);

  ASSERT_EQ(wide.losses.size(), static_cast<std::size_t>(kSteps));
  ASSERT_EQ(narrow.losses.size(), wide.losses.size());
  EXPECT_LT(wide.losses.back(), 0.6 * wide.losses.front()) << "nothing was learnt";
  EXPECT_NE(narrow.losses, wide.losses) << "both ran in fp32";
  double largest = 0;
  for (std::size_t step = 0; step < wide.losses.size(); ++step) {
    const double share = std::abs(narrow.losses[step] / wide.losses[step] - 1.0);
    largest = std::max(largest, share);
    EXPECT_LE(share, kLossShare) << "step " << step << ": " << narrow.losses[step] << " and "
                                 << wide.losses[step];
  }
  std::printf("bf16 differs from fp32 by at most %.2f %%; loss %.3f -> %.3f\n",
              100 * largest,
              wide.losses.front(),
              wide.losses.back());
}

}  // namespace tessera::test
