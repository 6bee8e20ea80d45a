// SPDX-License-Identifier: Apache-2.0
// Small trainings inside one process: N ranks are N threads, so that a layout is one argument.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/engine/engine.h"
#include "tessera/models/family.h"
#include "tessera/nn/block.h"
#include "tessera/planner/plan.h"

namespace tessera::test {

/// The results of a training: everything that promises of equality refer to.
struct Trace {
  std::vector<double> losses, grad_norms, eval_losses;
  /// The terms of the loss in each step, then in the evaluation: bits_of().
  std::vector<std::string> metrics;
  std::vector<double> rates;               ///< learning rates
  std::vector<double> loss_scales;         ///< for fp16
  std::vector<std::int64_t> batch_tokens;  ///< for each step
  std::vector<std::int64_t> skipped;       ///< steps so far
  std::vector<std::string> skip_reasons;
  std::vector<std::string> digest;           ///< of the checkpoint after the last step
  std::vector<parallel::EarlyCounts> early;  ///< of rank 0, for each step
};

/// Name, mean and denominator of every metric, to the last bit.
std::string bits_of(const engine::Metrics& metrics);

/// Checks that all but rates, tokens, texts and early updates is equal; norms that are not finite,
/// as those of skipped steps, count as equal.
void expect_same_bits(const Trace& a, const Trace& b);

/// AdamW's first moments by parameter name, in the newest checkpoint of `root`. After one update
/// without clipping they are (1 - beta1) times the gradient.
std::vector<std::pair<std::string, std::vector<float>>> first_moments(
    const std::filesystem::path& root);

/// How a training is distributed over ranks.
struct Layout {
  int ranks = 1;
  std::int64_t accumulation = 1;
  std::int64_t micro_batch = 2;
  int stage = 1;
  std::string pipeline = {};  ///< `parallel.pipeline`, as JSON; empty: none
  int tensor = 1;             ///< ranks that hold a layer between them
  bool sequence = false;      ///< and its tokens
  std::string mode = "1d";    ///< mode of `tensor`
  int depth = 1;              ///< depth of mode 2.5d
  int context = 1;            ///< ranks that share the tokens of every sample
  std::string context_mode = "ring";
};

/// A tiny GPT on the text of a temporary folder. `changes` are applied to the configuration before
/// it is resolved.
class TinyRun {
 public:
  TinyRun();
  /// "optimizer.params.lr", "3e-3": as --set does. Returns itself.
  TinyRun& set(const std::string& path, const std::string& json);
  /// One text per sample, each with padding of another length, and a short batch at the end.
  TinyRun& use_padded_documents();
  /// Several texts or parts of texts per sample, which do not see each other.
  TinyRun& use_separate_documents();
  /// Trains the model that `make` returns instead of the planned GPT; it must have the same sizes
  /// and number of blocks.
  TinyRun& use_model(std::function<nn::Model(const models::Resolved&)> make);
  /// Every rank trains in the world that `make` returns for the rank's own world.
  TinyRun& use_world(std::function<std::unique_ptr<comm::World>(comm::World&)> make);
  /// Trains `steps` steps in `layout`, from the beginning or from `resume`; evaluates after the
  /// last one and saves into `save`.
  [[nodiscard]] Trace train(const Layout& layout,
                            std::int64_t steps,
                            const std::filesystem::path& save = {},
                            const std::filesystem::path& resume = {}) const;
  [[nodiscard]] planner::Plan plan(const Layout& layout) const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_->path(); }
  /// The text that the evaluation hook would print: a continuation of `prompt` by the initial
  /// weights.
  [[nodiscard]] std::string sample(const Layout& layout) const;
  /// Gradients of the first step before any update, by parameter name, as the optimizer would see
  /// them.
  [[nodiscard]] std::vector<std::pair<std::string, std::vector<float>>> first_gradient(
      const Layout& layout) const;

 private:
  std::shared_ptr<const files::TempDir> folder_ = std::make_shared<const files::TempDir>();
  json::Value config_;
  std::function<nn::Model(const models::Resolved&)> make_model_;
  std::function<std::unique_ptr<comm::World>(comm::World&)> make_world_;
};

}  // namespace tessera::test
