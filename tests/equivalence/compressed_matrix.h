// SPDX-License-Identifier: Apache-2.0
// Optimizers that exchange signs in every precision, recomputed or not, with one micro-batch and
// with two, on 2, 3 and 4 ranks: ZeRO stages 0 and 1 agree to the bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "equivalence/covering.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tessera::test {

struct CompressedCell {
  /// Optimizer, precision, recompute, ranks, accumulation.
  static constexpr std::size_t kDimensions = 5;
  static constexpr std::array kOptimizers = {"OneBitAdam", "OneBitLamb", "ZeroOneAdam"};
  static constexpr std::array kPrecisions = {"fp32", "bf16", "fp16"};
  static constexpr std::array kRecomputes = {"none", "full"};
  static constexpr std::array kRanks = {2, 3, 4};
  static constexpr std::array kAccumulations = {1, 2};
  /// Signs from the fourth update on.
  static constexpr std::int64_t kSteps = 6;

  /// The index of the value in each dimension.
  std::array<std::size_t, kDimensions> index{};

  [[nodiscard]] std::string text() const {
    return fmt::format("{}, {}, recompute {}, {} ranks, accumulation {}",
                       kOptimizers[index[0]],
                       kPrecisions[index[1]],
                       kRecomputes[index[2]],
                       kRanks[index[3]],
                       kAccumulations[index[4]]);
  }
  [[nodiscard]] TinyRun run() const;
  [[nodiscard]] Layout layout(int stage) const {
    return {.ranks = kRanks[index[3]], .accumulation = kAccumulations[index[4]], .stage = stage};
  }
};

/// A run with an optimizer that exchanges signs from the fourth update on.
inline TinyRun run_with_signs(const std::string& optimizer) {
  const std::string freeze =
      optimizer == "ZeroOneAdam"
          ? R"("var_freeze_step": 3, "var_update_scaler": 1, "local_step_scaler": 2, "local_step_clipper": 4)"
          : R"("freeze_step": 3)";
  TinyRun run;
  return run.set(
      "optimizer",
      R"({"type": ")" + optimizer + R"(", "params": {"lr": 1e-3, "eps": 1e-4, )" + freeze + "}}");
}

inline TinyRun CompressedCell::run() const {
  TinyRun run = run_with_signs(kOptimizers[index[0]]);
  const std::string precision = kPrecisions[index[1]];
  if (precision != "fp32") run.set(precision + ".enabled", "true");
  return run.set("activation_checkpointing.granularity",
                 fmt::format("\"{}\"", kRecomputes[index[2]]));
}

inline std::vector<CompressedCell> all_compressed_cells() {
  std::vector<CompressedCell> out;
  for (std::size_t o = 0; o < CompressedCell::kOptimizers.size(); ++o) {
    for (std::size_t p = 0; p < CompressedCell::kPrecisions.size(); ++p) {
      for (std::size_t r = 0; r < CompressedCell::kRecomputes.size(); ++r) {
        for (std::size_t n = 0; n < CompressedCell::kRanks.size(); ++n) {
          for (std::size_t a = 0; a < CompressedCell::kAccumulations.size(); ++a)
            out.push_back({{o, p, r, n, a}});
        }
      }
    }
  }
  return out;
}

inline void expect_compressed_cells(const std::vector<CompressedCell>& cells) {
  for (const CompressedCell& cell : cells) {
    SCOPED_TRACE(cell.text());
    const TinyRun run = cell.run();
    const Trace zero = run.train(cell.layout(0), CompressedCell::kSteps);

    ASSERT_EQ(zero.losses.size(), static_cast<std::size_t>(CompressedCell::kSteps));
    EXPECT_EQ(zero.skipped.back(), 0);
    expect_same_bits(zero, run.train(cell.layout(1), CompressedCell::kSteps));
  }
}

}  // namespace tessera::test
