// SPDX-License-Identifier: Apache-2.0
// The matrix of what must agree to the bit: optimizer x ranks x precision x accumulation x
// recompute, each cell in ZeRO stages 0 to 3 and on one rank with the same micro-batches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

#include "tessera/optim/rule.h"
#include "tessera/planner/recipe.h"

namespace tessera::testing {

inline constexpr std::array kRanks = {2, 3, 4};
inline constexpr std::array kPrecisions = {"fp32", "bf16", "fp16"};
inline constexpr std::array kAccumulations = {1, 2};
inline constexpr std::array kRecomputes = {"none", "full", "selective"};

/// Optimizers whose bits depend on no layout: those that exchange signs promise less.
inline std::vector<std::string> exact_rules() {
  std::vector<std::string> names = optim::rules().names();
  std::erase_if(names, [](const std::string& name) {
    const planner::OptimizerOptions options{.type = name};
    return planner::exchange_needs(options).compressed;
  });
  return names;
}

struct Cell {
  static constexpr std::size_t kDimensions = 5;
  std::string optimizer;
  /// Of the value in each dimension: optimizer, ranks, precision, accumulation, recompute.
  std::array<std::size_t, kDimensions> index{};

  [[nodiscard]] int ranks() const { return kRanks[index[1]]; }
  [[nodiscard]] std::string precision() const { return kPrecisions[index[2]]; }
  [[nodiscard]] std::int64_t accumulation() const { return kAccumulations[index[3]]; }
  [[nodiscard]] std::string recompute() const { return kRecomputes[index[4]]; }
  [[nodiscard]] std::string text() const {
    return optimizer + ", " + std::to_string(ranks()) + " ranks, " + precision() +
           ", accumulation " + std::to_string(accumulation()) + ", recompute " + recompute();
  }
};

inline std::vector<Cell> whole_matrix() {
  std::vector<Cell> cells;
  const std::vector<std::string> optimizers = exact_rules();
  for (std::size_t o = 0; o < optimizers.size(); ++o) {
    for (std::size_t n = 0; n < kRanks.size(); ++n) {
      for (std::size_t p = 0; p < kPrecisions.size(); ++p) {
        for (std::size_t a = 0; a < kAccumulations.size(); ++a) {
          for (std::size_t r = 0; r < kRecomputes.size(); ++r)
            cells.push_back({optimizers[o], {o, n, p, a, r}});
        }
      }
    }
  }
  return cells;
}

/// Cells in which every pair of values of two dimensions stands together once: the one that adds
/// most pairs next, until none is missing.
inline std::vector<Cell> covering(const std::vector<Cell>& cells) {
  using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;
  const auto pairs_of = [](const Cell& cell) {
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < Cell::kDimensions; ++a) {
      for (std::size_t b = a + 1; b < Cell::kDimensions; ++b)
        pairs.emplace_back(a, cell.index[a], b, cell.index[b]);
    }
    return pairs;
  };
  std::set<Pair> missing;
  for (const Cell& cell : cells) {
    for (const Pair& pair : pairs_of(cell))
      missing.insert(pair);
  }
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    const auto adds = [&](const Cell& cell) {
      const std::vector<Pair> pairs = pairs_of(cell);
      return std::count_if(
          pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.contains(pair); });
    };
    const Cell* best = &cells.front();
    for (const Cell& cell : cells) {
      if (adds(cell) > adds(*best)) best = &cell;
    }
    for (const Pair& pair : pairs_of(*best))
      missing.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

inline TinyRun run_of(const Cell& cell) {
  TinyRun run;
  const bool mu = cell.optimizer.starts_with("Mu") && cell.optimizer != "Muon";
  const std::string params = mu ? R"({"base_hidden_size": 16})" : "{}";
  // Nothing is small enough to stay whole in stage 3.
  run.set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("optimizer", "{\"type\": \"" + cell.optimizer + "\", \"params\": " + params + "}");
  if (cell.precision() != "fp32") run.set(cell.precision() + ".enabled", "true");
  if (cell.recompute() != "none")
    run.set("activation_checkpointing.granularity", '"' + cell.recompute() + '"');
  return run;
}

/// Trains the cell in every stage and on one rank; says what differs from stage 0.
inline std::vector<std::string> differences(const Cell& cell) {
  constexpr std::int64_t kSteps = 3;
  const TinyRun run = run_of(cell);
  const auto train = [&](int ranks, std::int64_t accumulation, int stage) {
    return run.train({.ranks = ranks, .accumulation = accumulation, .stage = stage}, kSteps);
  };
  const Trace reference = train(cell.ranks(), cell.accumulation(), 0);
  std::vector<std::string> out;
  const auto compare = [&](const std::string& what, const Trace& other) {
    const bool same =
        reference.losses == other.losses && reference.grad_norms == other.grad_norms &&
        reference.eval_losses == other.eval_losses && reference.digest == other.digest;
    if (!same) out.push_back(cell.text() + ": " + what + " differs from stage 0");
  };
  for (const int stage : {1, 2, 3})
    compare("stage " + std::to_string(stage), train(cell.ranks(), cell.accumulation(), stage));
  compare("one rank", train(1, cell.accumulation() * cell.ranks(), 0));
  if (reference.losses.size() != static_cast<std::size_t>(kSteps) ||
      reference.skipped.back() == kSteps) {
    out.push_back(cell.text() + ": did not train");
  }
  return out;
}

}  // namespace tessera::testing
