// SPDX-License-Identifier: Apache-2.0
// Every family in every way that a model is spread: data parallelism, ZeRO, tensor parallelism (1d,
// its sequence parallelism, and a grid), context parallelism, pipelines, recomputation, bf16 and
// fp16 with fp32 master weights, and rows of several documents that do not see each other. Each
// cell equals one rank, to the bit or up to rounding, or the plan refuses it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/covering.h"
#include "equivalence/family_rows.h"
#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/engine/verify.h"
#include "tessera/models/family.h"
#include "tessera/parallel/layout.h"

namespace tessera::test {

/// A row in a layout.
struct FamilyCell {
  /// Row, tensor, context, pipeline, data ranks, ZeRO, recompute, numbers or packed rows.
  static constexpr std::size_t kDimensions = 8;
  static constexpr std::array kTensor = {"none", "1d", "1d of 4", "sequence", "2d"};
  static constexpr std::array kContext = {"none", "ring", "ulysses"};
  static constexpr std::array kPipelines = {
      "", R"({"size": 2})", R"({"size": 2, "schedule": "interleaved", "chunks": 2})"};
  static constexpr std::array kRecompute = {"none", "full", "selective"};
  static constexpr std::array kKinds = {"fp32", "bf16", "fp16", "packed"};
  static constexpr int kMostRanks = 8;
  /// Micro-batches of a global batch, however many ranks share them.
  static constexpr std::int64_t kMicros = 4;

  /// The index of the value in each dimension.
  std::array<std::size_t, kDimensions> index{};
  /// An adapter of all linear layers is trained instead of the layers.
  bool adapted = false;

  [[nodiscard]] const FamilyRow& row() const { return family_rows()[index[0]]; }
  [[nodiscard]] std::string tensor() const { return kTensor[index[1]]; }
  [[nodiscard]] std::string context() const { return kContext[index[2]]; }
  [[nodiscard]] std::string pipeline() const { return kPipelines[index[3]]; }
  [[nodiscard]] int data() const { return 1 << index[4]; }
  [[nodiscard]] int zero() const { return static_cast<int>(index[5]); }
  [[nodiscard]] std::string recompute() const { return kRecompute[index[6]]; }
  [[nodiscard]] std::string kind() const { return kKinds[index[7]]; }
  [[nodiscard]] bool narrow() const { return kind() == "bf16" || kind() == "fp16"; }
  [[nodiscard]] int tensor_ranks() const {
    return tensor() == "none" ? 1 : tensor() == "2d" || tensor() == "1d of 4" ? 4 : 2;
  }
  [[nodiscard]] int context_ranks() const { return context() == "none" ? 1 : 2; }
  [[nodiscard]] int ranks() const {
    return tensor_ranks() * context_ranks() * (pipeline().empty() ? 1 : 2) * data();
  }
  [[nodiscard]] bool makes_sense() const {
    return ranks() > 1 && ranks() <= kMostRanks &&
           // Rows that are texts of their own are not packed.
           !(kind() == "packed" && !row().packs()) &&
           // A grid cuts samples and channels, not tokens.
           !(tensor() == "2d" && context() != "none") &&
           // Every rank needs at least one head of its own.
           !(tensor() == "1d of 4" && context() == "ulysses") &&
           // Interleaving takes at least as many micro-batches as there are stages.
           !(index[3] == 2 && data() == 4);
  }
  /// The features of the cell that the plan refuses.
  [[nodiscard]] std::vector<std::string> refused() const {
    std::vector<std::string> out;
    const auto add = [&](const std::string& what) {
      if (row().refused.contains(what)) out.push_back(what);
    };
    if (tensor() == "2d") add("grid");
    if (tensor() == "sequence") add("sequence");
    if (context() != "none") add("context");
    if (context() == "ulysses") add("ulysses");
    return out;
  }
  /// Sums are split differently only where ranks share a layer or the tokens of a sample.
  [[nodiscard]] bool same_bits() const { return tensor_ranks() == 1 && context_ranks() == 1; }
  [[nodiscard]] Layout layout() const {
    return {.ranks = ranks(),
            .accumulation = kMicros / data(),
            .micro_batch = 2,
            .stage = zero(),
            .pipeline = pipeline(),
            .tensor = tensor_ranks(),
            .sequence = tensor() == "sequence",
            .mode = tensor() == "2d" ? "2d" : "1d",
            .context = context_ranks(),
            .context_mode = context() == "none" ? "ring" : context()};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "{}: tensor {}, context {}, pipeline {}, {} data ranks, ZeRO {}, recompute "
        "{}, {}{}",
        row().name,
        tensor(),
        context(),
        pipeline().empty() ? "none" : pipeline(),
        data(),
        zero(),
        recompute(),
        kind(),
        adapted ? ", with an adapter" : "");
  }
  [[nodiscard]] TinyRun reference_run() const {
    TinyRun run = run_of(row());
    if (adapted) {
      run.set("adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})");
    }
    if (kind() == "packed") run.use_separate_documents();
    if (kind() == "bf16") run.set("bf16.enabled", "true");
    if (kind() == "fp16") run.set("fp16", R"({"enabled": true, "loss_scale": 256})");
    return run;
  }
  [[nodiscard]] TinyRun run() const {
    TinyRun run = reference_run();
    if (recompute() != "none")
      run.set("activation_checkpointing.granularity", '"' + recompute() + '"');
    return run;
  }
};

inline std::vector<FamilyCell> all_family_cells() {
  const std::array<std::size_t, FamilyCell::kDimensions> sizes = {family_rows().size(),
                                                                  FamilyCell::kTensor.size(),
                                                                  FamilyCell::kContext.size(),
                                                                  FamilyCell::kPipelines.size(),
                                                                  3,
                                                                  4,
                                                                  FamilyCell::kRecompute.size(),
                                                                  FamilyCell::kKinds.size()};
  std::vector<FamilyCell> out;
  FamilyCell next;
  while (true) {
    if (next.makes_sense()) out.push_back(next);
    std::size_t d = 0;
    while (d < sizes.size() && ++next.index[d] == sizes[d])
      next.index[d++] = 0;
    if (d == sizes.size()) return out;
  }
}

/// The cells of some rows: those that train, and one for each set of features that the plan refuses
/// for a row.
struct TrainedAndRefused {
  std::vector<FamilyCell> trained, refused;
};
inline TrainedAndRefused family_cells(bool with_repeats) {
  TrainedAndRefused out;
  std::set<std::pair<std::size_t, std::vector<std::string>>> refused;
  for (const FamilyCell& cell : all_family_cells()) {
    if (cell.row().repeats && !with_repeats) continue;
    if (cell.refused().empty())
      out.trained.push_back(cell);
    else if (refused.insert({cell.index[0], cell.refused()}).second)
      out.refused.push_back(cell);
  }
  return out;
}

/// Sorted by row, so that reference runs are made once and then released.
inline std::vector<FamilyCell> in_order(std::vector<FamilyCell> cells) {
  std::ranges::sort(cells, {}, &FamilyCell::index);
  const auto [first, last] = std::ranges::unique(cells, {}, &FamilyCell::index);
  cells.erase(first, last);
  return cells;
}

/// Cells that contain every pair of a row with a value of another dimension, and every pair of
/// these values: pairs that can be trained in a cell that trains.
inline std::vector<FamilyCell> family_pairs() {
  TrainedAndRefused cells = family_cells(/*with_repeats=*/true);
  std::vector<FamilyCell> out = covering(cells.trained);
  out.insert(out.end(), cells.refused.begin(), cells.refused.end());
  return in_order(std::move(out));
}

/// A cell with other dimensions, which a selection covers in its place.
template <std::size_t N>
struct FamilyCellSeenAs {
  static constexpr std::size_t kDimensions = N;
  std::array<std::size_t, N> index{};
  FamilyCell cell;
};

/// A smaller selection than family_pairs(), without the rows that repeat others: every pair of
/// values in some row; and every pair of a row with a way of being spread, where 2 and 4
/// tensor-parallel ranks count as one way, and so do both kinds of shared tokens, all pipelines,
/// any number of data ranks, ZeRO 0 to 2, both kinds of recomputation, and both kinds of 16 bits.
inline std::vector<FamilyCell> family_selection() {
  const TrainedAndRefused cells = family_cells(/*with_repeats=*/false);
  std::vector<FamilyCellSeenAs<FamilyCell::kDimensions - 1>> without_rows;
  std::vector<FamilyCellSeenAs<FamilyCell::kDimensions>> ways;
  for (const FamilyCell& cell : cells.trained) {
    const auto& at = cell.index;
    without_rows.push_back({.cell = cell});
    std::copy(at.begin() + 1, at.end(), without_rows.back().index.begin());
    const auto any = [](std::size_t value) { return std::min<std::size_t>(value, 1); };
    const std::size_t tensor = at[1] < 2 ? at[1] : at[1] - 1, stage_3 = cell.zero() == 3 ? 1U : 0U,
                      kind = cell.narrow() ? 1U : any(at[7]) * 2;
    ways.push_back(
        {{at[0], tensor, any(at[2]), any(at[3]), any(at[4]), stage_3, any(at[6]), kind}, cell});
  }
  std::vector<FamilyCell> out = cells.refused;
  for (const auto& seen : covering(without_rows))
    out.push_back(seen.cell);
  for (const auto& seen : covering(ways))
    out.push_back(seen.cell);
  return in_order(std::move(out));
}

/// Trains the cells of one row, and once each run that they are compared with.
class FamilyCells {
 public:
  /// Returns what is not as promised; empty if all is.
  std::string train(const FamilyCell& cell) {
    const std::vector<std::string> refused = cell.refused();
    try {
      (void)cell.run().plan(cell.layout());
    } catch (const Error& error) {
      if (refused.empty()) return fmt::format("is refused: {}", error.what());
      return exit_code(error.kind()) == exit_code(Error::Kind::Config)
                 ? ""
                 : fmt::format("is refused as another thing: {}", error.what());
    }
    if (!refused.empty()) return "was not refused";
    return cell.same_bits() ? compare_bits(cell) : compare_rounding(cell);
  }

 private:
  static constexpr std::int64_t kSteps = 4;
  struct Reference {
    Trace trace;
    // Only for cells that are compared up to rounding.
    Gradient gradient;
    Gradient wide;  ///< for cells in 16 bits: the gradient in fp32
  };

  static Gradient gradient_of(TinyRun run, const Layout& layout) {
    run.set("gradient_clipping", "0");  // gradients are read from moments
    return run.first_gradient(layout);
  }
  const Reference& reference_of(const FamilyCell& cell) {
    const std::pair key(cell.index[0], cell.kind());
    if (!references_.empty() && references_.begin()->first.first != cell.index[0])
      references_.clear();
    Reference& out = references_[key];
    const TinyRun run = cell.reference_run();
    const Layout one{.ranks = 1, .accumulation = FamilyCell::kMicros, .stage = 0};
    if (out.trace.losses.empty()) out.trace = run.train(one, kSteps);
    if (!cell.same_bits() && out.gradient.empty()) {
      out.gradient = gradient_of(run, one);
      if (cell.narrow()) out.wide = gradient_of(run_of(cell.row()), one);
    }
    return out;
  }
  std::string compare_bits(const FamilyCell& cell) {
    const Trace& one = reference_of(cell).trace;
    const Trace other = cell.run().train(cell.layout(), kSteps);
    if (one.losses.size() != static_cast<std::size_t>(kSteps)) return "did not train";
    if (one.losses != other.losses || one.grad_norms != other.grad_norms)
      return "losses or norms differ";
    if (one.eval_losses != other.eval_losses) return "the evaluation differs";
    return one.digest == other.digest ? "" : "weights or moments differ";
  }
  std::string compare_rounding(const FamilyCell& cell) {
    const double loss_bound = cell.narrow() ? kNarrowLoss : kLoss;
    const Reference& one = reference_of(cell);
    const Gradient gradient = gradient_of(cell.run(), cell.layout());
    const Trace spread = cell.run().train(cell.layout(), kSteps);
    double whole = 0;
    for (const auto& [name, values] : one.gradient)
      whole += norm(values) * norm(values);
    if (whole == 0 || gradient.size() != one.gradient.size() ||
        spread.losses.size() != one.trace.losses.size())
      return "did not train";
    const double floor = 1e-3 * std::sqrt(whole);
    for (std::size_t t = 0; t < gradient.size(); ++t) {
      if (gradient[t].first != one.gradient[t].first) return "other tensors";
      const double off = engine::deviation_of(one.gradient[t].second, gradient[t].second, floor);
      // With 32 channels rounding averages out little: two results differ by what bf16 changes in
      // each, and layouts that share layers and tokens also round partial sums.
      const double bound =
          cell.narrow() ? std::max(kNarrowGradient,
                                   3 * engine::deviation_of(
                                           one.wide[t].second, one.gradient[t].second, floor))
                        : 2 * kGradient;
      if (!(off <= bound))
        return fmt::format("the gradient of {} is off by {:.1e}", gradient[t].first, off);
    }
    for (std::size_t s = 0; s < spread.losses.size(); ++s) {
      const double loss = one.trace.losses[s];
      if (!(std::abs(spread.losses[s] - loss) <= loss_bound * loss))
        return fmt::format("loss {} instead of {} in step {}", spread.losses[s], loss, s);
    }
    return "";
  }

  std::map<std::pair<std::size_t, std::string>, Reference> references_;  // of one row
};

inline void expect_family_cells(const std::vector<FamilyCell>& cells) {
  FamilyCells trained;
  for (const FamilyCell& cell : cells)
    EXPECT_EQ(trained.train(cell), "") << cell.text();
}

}  // namespace tessera::test
