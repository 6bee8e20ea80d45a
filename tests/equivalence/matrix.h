// SPDX-License-Identifier: Apache-2.0
// The matrix of what must agree to the bit: optimizer x ranks x precision x accumulation x
// recompute, each cell in ZeRO stages 0 to 3, in a pipeline and on one rank with the same
// micro-batches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/covering.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/optim/make_rule.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/planner/recipe.h"

namespace tessera::test {

inline constexpr std::array kRanks = {2, 3, 4};
inline constexpr std::array kPrecisions = {"fp32", "bf16", "fp16"};
inline constexpr std::array kAccumulations = {1, 2};
inline constexpr std::array kRecomputes = {"none", "full", "selective"};

/// Optimizers whose bits depend on no layout: those that exchange signs promise less.
inline std::vector<std::string> exact_rules() {
  std::vector<std::string> names = optim::rules().names();
  std::erase_if(names, [](const std::string& name) {
    const optim::OptimizerOptions options{.type = name};
    return optim::exchange_needs(options).compressed;
  });
  return names;
}

struct Cell {
  static constexpr std::size_t kDimensions = 5;
  std::string optimizer;
  /// The index of the value in each dimension: optimizer, ranks, precision, accumulation,
  /// recompute.
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

/// A run wide enough that shards split matrices, so that Muon and Adafactor must gather them.
inline TinyRun run_with_optimizer(const std::string& optimizer) {
  TinyRun run;
  // mu-P scales rates by how much wider the model is than the one that was tuned.
  const bool mu = optimizer.starts_with("Mu") && optimizer != "Muon";
  const std::string params = mu ? R"({"hidden_size": 64, "base_hidden_size": 32})" : "{}";
  // With a threshold of 0 every parameter is sharded in stage 3.
  return run.set("model.hidden_size", "64")
      .set("zero_optimization.stage3_param_persistence_threshold", "0")
      .set("optimizer", "{\"type\": \"" + optimizer + "\", \"params\": " + params + "}");
}

inline TinyRun run_of(const Cell& cell) {
  TinyRun run = run_with_optimizer(cell.optimizer);
  if (cell.precision() != "fp32") run.set(cell.precision() + ".enabled", "true");
  if (cell.recompute() != "none")
    run.set("activation_checkpointing.granularity", '"' + cell.recompute() + '"');
  return run;
}

/// Two pipeline stages; the schedules take turns over the cells.
inline std::string pipeline_of(const Cell& cell) {
  static const std::vector<std::string> schedules = parallel::pipeline_schedules().names();
  std::size_t turn = 0;
  for (const std::size_t index : cell.index)
    turn += index;
  const std::string& name = schedules[turn % schedules.size()];
  // Interleaving takes at least two micro-batches.
  const bool whole =
      !parallel::pipeline_schedules().get(name).full_round || cell.accumulation() >= 2;
  return R"({"size": 2, "schedule": ")" + (whole ? name : "1f1b") + "\"}";
}

/// What a cell is compared with: the same micro-batches in another layout.
inline constexpr std::array kOtherLayouts = {"stage 1",
                                             "stage 2",
                                             "stage 3",
                                             "a pipeline with stage 0",
                                             "a pipeline with stage 3",
                                             "one rank"};

inline Layout other_layout(const Cell& cell, std::size_t other) {
  Layout out{.ranks = cell.ranks(), .accumulation = cell.accumulation()};
  if (other < 3) {
    out.stage = static_cast<int>(other) + 1;
  } else if (other < 5) {
    out.ranks = 2 * cell.ranks();
    out.stage = other == 3 ? 0 : 3;
    out.pipeline = pipeline_of(cell);
  } else {
    out = {.ranks = 1, .accumulation = cell.accumulation() * cell.ranks(), .stage = 0};
  }
  return out;
}

/// Trains the cell in stage 0 and in `others`, by their indices; returns what differs from stage 0.
inline std::vector<std::string> differences(const Cell& cell,
                                            const std::vector<std::size_t>& others) {
  constexpr std::int64_t kSteps = 3;
  const TinyRun run = run_of(cell);
  const Trace reference =
      run.train({.ranks = cell.ranks(), .accumulation = cell.accumulation(), .stage = 0}, kSteps);
  std::vector<std::string> out;
  for (const std::size_t other : others) {
    const Trace trace = run.train(other_layout(cell, other), kSteps);
    const bool same =
        reference.losses == trace.losses && reference.grad_norms == trace.grad_norms &&
        reference.eval_losses == trace.eval_losses && reference.digest == trace.digest;
    if (!same) {
      out.push_back(fmt::format("{}: {} (schedule {}) differs from stage 0",
                                cell.text(),
                                kOtherLayouts[other],
                                pipeline_of(cell)));
    }
  }
  if (reference.losses.size() != static_cast<std::size_t>(kSteps) ||
      reference.skipped.back() == kSteps) {
    out.push_back(cell.text() + ": did not train");
  }
  return out;
}

}  // namespace tessera::test
