// SPDX-License-Identifier: Apache-2.0
// Every combination of pipeline, tensor, sequence and data parallelism, ZeRO, schedule, precision,
// recomputation, tied and uneven models on up to 8 ranks: each equals one rank, as exactly as
// promised, or is refused before it starts.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/covering.h"
#include "equivalence/matrix.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/engine/verify.h"
#include "tessera/planner/reference.h"

namespace tessera::testing {

struct Combination {
  static constexpr std::size_t kDimensions = 10;
  static constexpr std::array kStages = {1, 2, 4};
  static constexpr std::array kTensor = {1, 2, 4};
  static constexpr std::array kData = {1, 2};
  static constexpr std::array kZero = {0, 1, 2, 3};
  /// Of a pipeline; the first one is none.
  static constexpr std::array kSchedules = {
      "none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
  static constexpr int kMostRanks = 8;
  /// Of a global batch, however many ranks share them.
  static constexpr std::int64_t kMicros = 4;

  /// Of the value in each dimension: pipeline, tensor, sequence, data, ZeRO, schedule, precision,
  /// recompute, tied, even.
  std::array<std::size_t, kDimensions> index{};

  [[nodiscard]] int stages() const { return kStages[index[0]]; }
  [[nodiscard]] int tensor() const { return kTensor[index[1]]; }
  [[nodiscard]] bool sequence() const { return index[2] == 1; }
  [[nodiscard]] int data() const { return kData[index[3]]; }
  [[nodiscard]] int zero() const { return kZero[index[4]]; }
  [[nodiscard]] std::string schedule() const { return kSchedules[index[5]]; }
  [[nodiscard]] std::string precision() const { return kPrecisions[index[6]]; }
  [[nodiscard]] std::string recompute() const { return kRecomputes[index[7]]; }
  [[nodiscard]] bool tied() const { return index[8] == 0; }
  [[nodiscard]] bool even() const { return index[9] == 0; }
  [[nodiscard]] int ranks() const { return stages() * tensor() * data(); }
  [[nodiscard]] std::int64_t accumulation() const { return kMicros / data(); }

  /// Without its values of model and precision: "2 | 4 | yes | 1 | 1f1b".
  [[nodiscard]] std::string layout_text() const {
    return fmt::format("{} | {} | {} | {} | {}",
                       stages(),
                       tensor(),
                       sequence() ? "yes" : "no",
                       data(),
                       stages() == 1 ? "" : schedule());
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} | {} | {} | {} | {} | {}",
                       layout_text(),
                       zero(),
                       precision(),
                       recompute(),
                       tied() ? "tied" : "untied",
                       even() ? "even" : "uneven");
  }

  /// A schedule goes with a pipeline, and a cut sequence with shared layers.
  [[nodiscard]] bool makes_sense() const {
    return (stages() == 1) == (index[5] == 0) && !(sequence() && tensor() == 1) &&
           ranks() <= kMostRanks;
  }
  /// Interleaving takes micro-batches in rounds of as many as there are stages.
  [[nodiscard]] bool is_refused() const {
    return stages() > 1 && parallel::pipeline_schedules().get(schedule()).whole_rounds &&
           accumulation() % stages() != 0;
  }

  [[nodiscard]] Layout layout() const {
    return {
        .ranks = ranks(),
        .accumulation = accumulation(),
        .stage = zero(),
        .pipeline = stages() == 1
                        ? ""
                        : fmt::format(R"({{"size": {}, "schedule": "{}"}})", stages(), schedule()),
        .tensor = tensor(),
        .sequence = sequence()};
  }
  /// `run` with the model and precision; nothing runs twice there.
  [[nodiscard]] TinyRun reference_run(TinyRun run) const {
    // Nothing is small enough to stay whole in stage 3.
    run.set("zero_optimization.stage3_param_persistence_threshold", "0")
        .set("model.tie_embeddings", tied() ? "true" : "false")
        .set("model.num_layers", even() ? "6" : "7");
    // 5 heads, 83 features and 259 tokens over 2 or 4 ranks; 9 blocks over 2 or 4 stages.
    if (!even()) {
      run.set("model.hidden_size", "40")
          .set("model.num_heads", "5")
          .set("model.ffn_hidden_size", "83")
          .set("model.vocab_size", "259");
    }
    if (precision() != "fp32") run.set(precision() + ".enabled", "true");
    // No first gradient overflows: a skipped step has none to compare.
    if (precision() == "fp16") run.set("fp16.initial_scale_power", "10");
    return run;
  }
  [[nodiscard]] TinyRun run(const TinyRun& base) const {
    TinyRun out = reference_run(base);
    if (recompute() != "none")
      out.set("activation_checkpointing.granularity", '"' + recompute() + '"');
    return out;
  }
};

inline std::vector<Combination> all_combinations() {
  const std::array<std::size_t, Combination::kDimensions> sizes = {Combination::kStages.size(),
                                                                   Combination::kTensor.size(),
                                                                   2,
                                                                   Combination::kData.size(),
                                                                   Combination::kZero.size(),
                                                                   Combination::kSchedules.size(),
                                                                   kPrecisions.size(),
                                                                   kRecomputes.size(),
                                                                   2,
                                                                   2};
  std::vector<Combination> out;
  Combination next;
  while (true) {
    const bool one_rank = next.ranks() == 1;
    if (next.makes_sense() && !one_rank) out.push_back(next);
    std::size_t d = 0;
    while (d < sizes.size() && ++next.index[d] == sizes[d])
      next.index[d++] = 0;
    if (d == sizes.size()) return out;
  }
}

/// What became of a combination.
struct Outcome {
  std::string refused;            ///< why it cannot start; empty: it trained
  bool bits = false;              ///< the same bits are promised
  double gradient = 0, loss = 0;  ///< largest deviations, where they are not
  std::string broken;             ///< what is not as promised; empty: nothing
};

/// Trains combinations, and what they are compared with once.
class Combinations {
 public:
  Outcome train(const Combination& cell) {
    Outcome out;
    std::optional<planner::Plan> plan;
    try {
      plan = cell.run(base_).plan(cell.layout());
    } catch (const Error& error) {
      if (exit_code(error.kind()) != exit_code(Error::Kind::Config)) throw;
      out.refused = error.what();
      std::replace(out.refused.begin(), out.refused.end(), '\n', ' ');
    }
    if (cell.is_refused() != !plan.has_value()) {
      out.broken = plan ? "was not refused" : "is refused: " + out.refused;
      return out;
    }
    if (!plan) return out;
    const planner::Promise promise = planner::promise_of(*plan);
    out.bits = promise.bits;
    if (promise.bits)
      compare_bits(cell, out);
    else
      compare_rounding(cell, promise, out);
    return out;
  }

 private:
  static constexpr std::int64_t kBitSteps = 3, kRoundingSteps = 10;
  using Gradient = std::vector<std::pair<std::string, std::vector<float>>>;
  struct Reference {
    Trace few, many;
    Gradient gradient;
  };

  /// Gradients are read from moments, which clipping would scale.
  static Gradient gradient_of(TinyRun run, const Layout& layout) {
    run.set("gradient_clipping", "0");
    return run.first_gradient(layout);
  }

  const Reference& reference_of(const Combination& cell) {
    const std::array key = {cell.index[6], cell.index[8], cell.index[9]};
    const auto found = references_.find(key);
    if (found != references_.end()) return found->second;
    const TinyRun run = cell.reference_run(base_);
    const Layout one{.ranks = 1, .accumulation = Combination::kMicros, .stage = 0};
    return references_[key] = {
               run.train(one, kBitSteps), run.train(one, kRoundingSteps), gradient_of(run, one)};
  }

  void compare_bits(const Combination& cell, Outcome& out) {
    const Trace& one = reference_of(cell).few;
    const Trace spread = cell.run(base_).train(cell.layout(), kBitSteps);
    if (one.losses.size() != static_cast<std::size_t>(kBitSteps)) out.broken = "did not train";
    if (one.digest != spread.digest) out.broken = "weights or moments differ";
    if (one.losses != spread.losses || one.grad_norms != spread.grad_norms)
      out.broken = "losses or norms differ";
    if (one.eval_losses != spread.eval_losses) out.broken = "the evaluation differs";
  }

  void compare_rounding(const Combination& cell, const planner::Promise& promise, Outcome& out) {
    const Reference& one = reference_of(cell);
    const Gradient gradient = gradient_of(cell.run(base_), cell.layout());
    const Trace spread = cell.run(base_).train(cell.layout(), kRoundingSteps);
    double whole = 0;
    for (const auto& [name, values] : one.gradient) {
      for (const float v : values)
        whole += static_cast<double>(v) * v;
    }
    if (whole == 0 || gradient.size() != one.gradient.size() ||
        spread.losses.size() != one.many.losses.size()) {
      out.broken = "did not train";
      return;
    }
    const double floor = 1e-3 * std::sqrt(whole);
    for (std::size_t t = 0; t < gradient.size(); ++t) {
      if (gradient[t].first != one.gradient[t].first) out.broken = "other tensors";
      out.gradient = std::max(
          out.gradient, engine::deviation_of(one.gradient[t].second, gradient[t].second, floor));
    }
    for (std::size_t s = 0; s < spread.losses.size(); ++s) {
      const double reference = one.many.losses[s];
      out.loss = std::max(out.loss, std::abs(spread.losses[s] - reference) / reference);
    }
    if (!(out.gradient <= promise.gradient))
      out.broken = fmt::format("gradient {:.1e}, promised {:.1e}", out.gradient, promise.gradient);
    if (!(out.loss <= promise.loss))
      out.broken = fmt::format("loss {:.1e}, promised {:.1e}", out.loss, promise.loss);
  }

  TinyRun base_;  ///< its text is everybody's
  std::map<std::array<std::size_t, 3>, Reference> references_;
};

struct CombinationResult {
  Combination cell;
  Outcome outcome;
};

/// Trains all of `cells`, and fails for each promise that is broken.
inline std::vector<CombinationResult> train_all(const std::vector<Combination>& cells) {
  Combinations combinations;
  std::vector<CombinationResult> out;
  for (const Combination& cell : cells) {
    SCOPED_TRACE(cell.text());
    out.push_back({cell, combinations.train(cell)});
    EXPECT_EQ(out.back().outcome.broken, "");
  }
  return out;
}

inline std::string in_words(const Outcome& outcome) {
  if (!outcome.broken.empty()) return "BROKEN: " + outcome.broken;
  if (!outcome.refused.empty()) return "refused before start: " + outcome.refused;
  if (outcome.bits) return "equals one rank to the bit";
  return fmt::format(
      "equals one rank: gradient {:.1e}, loss {:.1e}", outcome.gradient, outcome.loss);
}

constexpr const char* kLayoutHead = "| pp | tp | sequence | dp | schedule |";

/// A line for each combination.
inline void write_cells(std::ostream& out, const std::vector<CombinationResult>& results) {
  out << kLayoutHead << " ZeRO | precision | recompute | head | layers | |\n"
      << "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const CombinationResult& result : results)
    out << "| " << result.cell.text() << " | " << in_words(result.outcome) << " |\n";
}

/// What the combinations of one layout and precision have in common.
struct Tally {
  int all = 0, equal = 0, refused = 0;
  bool bits = true;
  double gradient = 0, loss = 0;
  void add(const Outcome& outcome) {
    ++all;
    if (!outcome.broken.empty()) return;
    if (!outcome.refused.empty()) {
      ++refused;
      return;
    }
    ++equal;
    bits = bits && outcome.bits;
    gradient = std::max(gradient, outcome.gradient);
    loss = std::max(loss, outcome.loss);
  }
  [[nodiscard]] std::string text() const {
    if (refused == all) return fmt::format("{} refused", refused);
    const std::string count = fmt::format("{} of {}", equal, all - refused);
    return bits ? count + " to the bit"
                : fmt::format("{}: gradient {:.1e}, loss {:.1e}", count, gradient, loss);
  }
};

/// A line for each layout, over ZeRO, recompute, head and layers; then why some are refused.
inline void write_layouts(std::ostream& out, const std::vector<CombinationResult>& results) {
  std::vector<std::string> layouts;
  std::map<std::pair<std::string, std::string>, Tally> tallies;
  std::map<std::string, int> reasons;
  for (const auto& [cell, outcome] : results) {
    const std::string layout = cell.layout_text();
    if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end())
      layouts.push_back(layout);
    tallies[{layout, cell.precision()}].add(outcome);
    if (!outcome.refused.empty()) ++reasons[outcome.refused];
  }
  out << kLayoutHead;
  for (const char* precision : kPrecisions)
    out << ' ' << precision << " |";
  out << "\n|---|---|---|---|---|---|---|---|\n";
  for (const std::string& layout : layouts) {
    out << "| " << layout << " |";
    for (const char* precision : kPrecisions)
      out << ' ' << tallies[{layout, precision}].text() << " |";
    out << '\n';
  }
  out << "\nRefused before anything starts:\n\n";
  for (const auto& [reason, count] : reasons)
    out << "- " << count << " times: " << reason << '\n';
}

/// Where tools/equivalence_table.sh wants the table; empty: nowhere.
inline std::string combinations_file() {
  const char* const path = std::getenv("TESSERA_COMBINATIONS_TABLE");
  return path == nullptr ? "" : path;
}

}  // namespace tessera::testing
