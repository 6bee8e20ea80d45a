// SPDX-License-Identifier: Apache-2.0
// Every combination of pipeline, tensor, sequence, context and data parallelism, ZeRO, schedule,
// precision, recomputation, tied and uneven models on up to 8 ranks: each equals one rank, as
// exactly as promised, or is refused before it starts.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/covering.h"
#include "equivalence/matrix.h"
#include "equivalence/within_rounding.h"
#include "support/host_world.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/engine/promise.h"
#include "tessera/engine/verify.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/plan.h"

namespace tessera::test {

struct Combination {
  /// Pipeline, tensor, sequence, context, data, ZeRO, schedule, precision, recompute, tied, even.
  static constexpr std::size_t kDimensions = 11;
  /// Ranks that hold a layer between them.
  struct Tensor {
    const char* text;
    int ranks;
    const char* mode;
    int depth;
    int heads;  ///< ranks that have different ones
  };
  /// Ranks that share the tokens of a sample.
  struct Context {
    const char* text;
    int ranks;
    const char* mode;
  };
  static constexpr std::array kStages = {1, 2, 4};
  static constexpr std::array kTensor = {Tensor{"1", 1, "1d", 1, 1},
                                         Tensor{"2", 2, "1d", 1, 2},
                                         Tensor{"4", 4, "1d", 1, 4},
                                         Tensor{"2d 4", 4, "2d", 1, 2},
                                         Tensor{"2.5d 2", 2, "2.5d", 2, 1},
                                         Tensor{"2.5d 8", 8, "2.5d", 2, 2},
                                         Tensor{"3d 8", 8, "3d", 1, 2}};
  static constexpr std::array kContext = {
      Context{"1", 1, "ring"}, Context{"2 ring", 2, "ring"}, Context{"2 ulysses", 2, "ulysses"}};
  static constexpr std::array kData = {1, 2};
  static constexpr std::array kZero = {0, 1, 2, 3};
  /// Pipeline schedules; the first entry means no pipeline.
  static constexpr std::array kSchedules = {
      "none", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
  static constexpr int kMostRanks = 8;
  /// Micro-batches of a global batch, however many ranks share them.
  static constexpr std::int64_t kMicros = 4;

  /// The index of the value in each dimension.
  std::array<std::size_t, kDimensions> index{};

  [[nodiscard]] int stages() const { return kStages[index[0]]; }
  [[nodiscard]] const Tensor& tensor() const { return kTensor[index[1]]; }
  [[nodiscard]] bool sequence() const { return index[2] == 1; }
  [[nodiscard]] const Context& context() const { return kContext[index[3]]; }
  [[nodiscard]] int data() const { return kData[index[4]]; }
  [[nodiscard]] int zero() const { return kZero[index[5]]; }
  [[nodiscard]] std::string schedule() const { return kSchedules[index[6]]; }
  [[nodiscard]] std::string precision() const { return kPrecisions[index[7]]; }
  [[nodiscard]] std::string recompute() const { return kRecomputes[index[8]]; }
  [[nodiscard]] bool tied() const { return index[9] == 0; }
  [[nodiscard]] bool even() const { return index[10] == 0; }
  [[nodiscard]] int ranks() const { return stages() * tensor().ranks * context().ranks * data(); }
  [[nodiscard]] std::int64_t accumulation() const { return kMicros / data(); }
  /// Samples; every rank of a grid has one.
  [[nodiscard]] std::int64_t micro_batch() const { return tensor().ranks == 8 ? 4 : 2; }
  [[nodiscard]] int layers() const { return even() ? 6 : 7; }
  [[nodiscard]] int heads() const { return even() ? 4 : 5; }
  [[nodiscard]] bool on_grid() const { return std::string(tensor().mode) != "1d"; }

  /// The name without model and precision: "2 | 4 | yes | 1 | 1 | 1f1b".
  [[nodiscard]] std::string layout_text() const {
    return fmt::format("{} | {} | {} | {} | {} | {}",
                       stages(),
                       tensor().text,
                       sequence() ? "yes" : "no",
                       context().text,
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

  /// A schedule needs a pipeline, and `sequence` needs tensor parallelism.
  [[nodiscard]] bool makes_sense() const {
    return (stages() == 1) == (index[6] == 0) && !(sequence() && tensor().ranks == 1) &&
           ranks() <= kMostRanks;
  }
  /// The keys that a refusal must speak of; none: it trains.
  [[nodiscard]] std::vector<std::string> refused_keys() const {
    std::vector<std::string> out;
    // Interleaving takes at least as many micro-batches as there are stages.
    if (stages() > 1 && parallel::pipeline_schedules().get(schedule()).full_round &&
        accumulation() < stages())
      out.emplace_back("parallel.pipeline.schedule");
    // A grid cuts samples and channels, not tokens.
    if (on_grid() && sequence()) out.emplace_back("parallel.sequence");
    // All-to-all trades tokens for whole heads.
    if (context().mode == std::string("ulysses") &&
        heads() % (tensor().heads * context().ranks) != 0)
      out.emplace_back("parallel.context.mode");
    return out;
  }
  [[nodiscard]] bool is_refused() const { return !refused_keys().empty(); }
  /// Sums are split differently only where ranks share a layer or the tokens of a sample.
  [[nodiscard]] bool same_bits() const { return tensor().ranks == 1 && context().ranks == 1; }
  [[nodiscard]] double gradient_bound() const {
    if (same_bits()) return 0;
    return precision() == "fp32" ? kGradient : 2e-2 * std::sqrt(layers() / 12.0);
  }
  [[nodiscard]] double loss_bound() const {
    if (same_bits()) return 0;
    return precision() == "fp32" ? kLoss : kNarrowLoss;
  }

  [[nodiscard]] Layout layout() const {
    return {
        .ranks = ranks(),
        .accumulation = accumulation(),
        .micro_batch = micro_batch(),
        .stage = zero(),
        .pipeline = stages() == 1
                        ? ""
                        : fmt::format(R"({{"size": {}, "schedule": "{}"}})", stages(), schedule()),
        .tensor = tensor().ranks,
        .sequence = sequence(),
        .mode = tensor().mode,
        .depth = tensor().depth,
        .context = context().ranks,
        .context_mode = context().mode};
  }
  /// `run` with the model and precision; nothing runs twice there.
  [[nodiscard]] TinyRun reference_run(TinyRun run) const {
    // With a threshold of 0 every parameter is sharded in stage 3.
    run.set("zero_optimization.stage3_param_persistence_threshold", "0")
        .set("model.tie_embeddings", tied() ? "true" : "false")
        .set("model.num_layers", std::to_string(layers()));
    // 5 heads, 83 features and 259 tokens over 2 or 4 ranks; 9 blocks over 2 or 4 stages.
    if (!even()) {
      run.set("model.hidden_size", "40")
          .set("model.num_heads", std::to_string(heads()))
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

/// All combinations with more than one rank.
inline std::vector<Combination> all_combinations() {
  const std::array<std::size_t, Combination::kDimensions> sizes = {Combination::kStages.size(),
                                                                   Combination::kTensor.size(),
                                                                   2,
                                                                   Combination::kContext.size(),
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
    if (next.makes_sense() && next.ranks() > 1) out.push_back(next);
    std::size_t d = 0;
    while (d < sizes.size() && ++next.index[d] == sizes[d])
      next.index[d++] = 0;
    if (d == sizes.size()) return out;
  }
}

/// All combinations: first those that train, then those that are refused.
inline std::array<std::vector<Combination>, 2> trained_and_refused() {
  std::array<std::vector<Combination>, 2> out;
  for (const Combination& cell : all_combinations())
    out[cell.is_refused() ? 1 : 0].push_back(cell);
  return out;
}

/// Combinations in which every tuple of values of any `strength` dimensions occurs: tuples that can
/// be trained in a combination that trains, tuples that are only refused in one that is refused; in
/// the order of values.
inline std::vector<Combination> selection(int strength) {
  const auto [trained, refused] = trained_and_refused();
  std::vector<Combination> out = covering(trained, strength);
  for (const Combination& cell : covering(refused, strength))
    out.push_back(cell);
  std::sort(out.begin(), out.end(), [](const Combination& a, const Combination& b) {
    return a.index < b.index;
  });
  return out;
}

/// The result of a combination.
struct Outcome {
  std::string refused;            ///< why it cannot start; empty: it trained
  bool bits = false;              ///< the same bits are promised
  double gradient = 0, loss = 0;  ///< largest deviations, where they are not
  std::string broken;             ///< what is not as promised; empty if all is
};

/// Trains combinations, and once each run that they are compared with.
class Combinations {
 public:
  /// `two_hosts`: the ranks of a combination are on two hosts (host_world.h).
  explicit Combinations(bool two_hosts = false) : spread_(base_) {
    if (two_hosts) spread_.use_world(OnTwoHosts());
  }

  Outcome train(const Combination& cell) {
    Outcome out;
    std::optional<planner::Plan> plan;
    try {
      plan = cell.run(base_).plan(cell.layout());
    } catch (const Error& error) {
      if (exit_code(error.kind()) != exit_code(Error::Kind::Config)) throw;
      out.refused = one_line(error.what());
    }
    if (!plan || cell.is_refused()) {
      compare_refusal(cell, out);
      return out;
    }
    const engine::Promise promise = engine::promise_of(*plan);
    out.bits = cell.same_bits();
    if (promise.bits != out.bits || std::abs(promise.gradient - cell.gradient_bound()) > 1e-12 ||
        promise.loss != cell.loss_bound()) {
      out.broken = "promises something else";
    } else if (out.bits) {
      compare_bits(cell, out);
    } else {
      compare_rounding(cell, out);
    }
    return out;
  }

 private:
  static constexpr std::int64_t kBitSteps = 3, kRoundingSteps = 10;
  struct Reference {
    Trace few, many;
    Gradient gradient;
  };

  static std::string one_line(const std::string& text) {
    std::string out;
    for (const char c : text) {
      const bool space = c == ' ' || c == '\n';
      if (!space || (!out.empty() && out.back() != ' ')) out += space ? ' ' : c;
    }
    return out;
  }

  static void compare_refusal(const Combination& cell, Outcome& out) {
    const std::vector<std::string> keys = cell.refused_keys();
    if (out.refused.empty()) out.broken = "was not refused";
    if (keys.empty()) out.broken = "is refused: " + out.refused;
    for (const std::string& key : keys) {
      if (out.refused.find(key + ": ") == std::string::npos)
        out.broken = "does not speak of " + key + ": " + out.refused;
    }
  }

  /// Gradients are read from moments, which clipping would scale.
  static Gradient gradient_of(TinyRun run, const Layout& layout) {
    run.set("gradient_clipping", "0");
    return run.first_gradient(layout);
  }

  const Reference& reference_of(const Combination& cell) {
    const std::array key = {
        cell.index[7], cell.index[9], cell.index[10], static_cast<std::size_t>(cell.micro_batch())};
    const auto found = references_.find(key);
    if (found != references_.end()) return found->second;
    const TinyRun run = cell.reference_run(base_);
    const Layout one{.ranks = 1,
                     .accumulation = Combination::kMicros,
                     .micro_batch = cell.micro_batch(),
                     .stage = 0};
    return references_[key] = {
               run.train(one, kBitSteps), run.train(one, kRoundingSteps), gradient_of(run, one)};
  }

  void compare_bits(const Combination& cell, Outcome& out) {
    const Trace& one = reference_of(cell).few;
    const Trace spread = cell.run(spread_).train(cell.layout(), kBitSteps);
    if (one.losses.size() != static_cast<std::size_t>(kBitSteps)) out.broken = "did not train";
    if (one.digest != spread.digest) out.broken = "weights or moments differ";
    if (one.losses != spread.losses || one.grad_norms != spread.grad_norms)
      out.broken = "losses or norms differ";
    if (one.eval_losses != spread.eval_losses) out.broken = "the evaluation differs";
  }

  void compare_rounding(const Combination& cell, Outcome& out) {
    const Reference& one = reference_of(cell);
    const Gradient gradient = gradient_of(cell.run(spread_), cell.layout());
    const Trace spread = cell.run(spread_).train(cell.layout(), kRoundingSteps);
    double whole = 0;
    for (const auto& [name, values] : one.gradient)
      whole += norm(values) * norm(values);
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
    if (!(out.gradient <= cell.gradient_bound()))
      out.broken =
          fmt::format("gradient {:.1e}, promised {:.1e}", out.gradient, cell.gradient_bound());
    if (!(out.loss <= cell.loss_bound()))
      out.broken = fmt::format("loss {:.1e}, promised {:.1e}", out.loss, cell.loss_bound());
  }

  TinyRun base_;  ///< its text is that of all runs
  TinyRun spread_;
  std::map<std::array<std::size_t, 4>, Reference> references_;
};

struct CombinationResult {
  Combination cell;
  Outcome outcome;
};

/// Trains all of `cells`, and fails for each promise that is broken.
inline std::vector<CombinationResult> train_all(const std::vector<Combination>& cells,
                                                bool two_hosts = false) {
  Combinations combinations(two_hosts);
  std::vector<CombinationResult> out;
  for (const Combination& cell : cells) {
    SCOPED_TRACE(cell.text());
    out.push_back({cell, combinations.train(cell)});
    EXPECT_EQ(out.back().outcome.broken, "");
  }
  return out;
}

}  // namespace tessera::test
