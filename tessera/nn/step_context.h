// SPDX-License-Identifier: Apache-2.0
// The properties of a step that the blocks in it can query.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {

enum class Mode : std::uint8_t { Train, Eval, Prefill, Decode };

/// Passed to every forward; it outlives the backward of everything that ran with it. Used only on
/// the rank's own thread.
class StepContext {
 public:
  StepContext(Mode mode, std::uint64_t seed) : mode_(mode), seed_(seed) {}

  [[nodiscard]] Mode mode() const { return mode_; }
  /// Prefill and Decode share a context, because it holds the caches.
  void set_mode(Mode mode) { mode_ = mode; }
  [[nodiscard]] bool training() const { return mode_ == Mode::Train; }
  std::int64_t step = 0;  ///< number of updates made before
  int micro = 0;          ///< index of this rank's micro-batch within the step
  /// Position of the first token of the flow: the length of the KV cache in Decode, else 0.
  std::int64_t position = 0;
  /// Initial capacity of a KV cache in tokens; the cache grows for longer sequences.
  std::int64_t cache_capacity = 0;
  /// If set, the objective puts "logits" [B, T, V] into its outputs. Prefill and Decode always do;
  /// if unset, for the last token only: [B, 1, V].
  bool want_logits = false;
  std::string block_name;                  ///< set by the runner
  const Batch* batch = nullptr;            ///< set by the runner
  const TensorParallel* tensor = nullptr;  ///< set by the runner; nullptr: weights are not split
  /// Set by the runner; nullptr: ranks do not share the tokens.
  const ContextParallel* context_parallel = nullptr;
  /// Set by the runner; nullptr: every rank has all experts.
  const ExpertParallel* experts = nullptr;
  /// True if the batch holds only this rank's tokens of its samples, own_tokens(), and other ranks
  /// hold the others. Generation never uses context parallelism.
  [[nodiscard]] bool shares_tokens() const {
    return context_parallel != nullptr && (mode_ == Mode::Train || mode_ == Mode::Eval);
  }
  /// True if tensor-parallel ranks hold shares of the tokens between their layers. Generation does
  /// not split tokens, because its sequences have any length.
  [[nodiscard]] bool cuts_tokens() const {
    return tensor != nullptr && tensor->sequence && (mode_ == Mode::Train || mode_ == Mode::Eval);
  }

  /// FlowForm::splits_samples() of flow_form.h: ranks have some samples and channels of the flow.
  [[nodiscard]] bool splits_samples() const;

  /// The random bits for one dropout of this block. `site` is its name within the block
  /// ("attention", "residual"). p becomes 0 outside of training.
  [[nodiscard]] ops::DropoutKey dropout(std::string_view site, double p) const;

  /// State of a block that outlives a forward, such as a KV cache. A block must not keep such state
  /// as a member.
  template <class S>
  S& state(const Block& block) {
    auto& slot = states_[{&block, std::type_index(typeid(S))}];
    if (!slot.has_value()) slot = S{};
    return *std::any_cast<S>(&slot);
  }

  /// Runs fn(inputs) as a named region: selective recompute may drop what it saves and run it again
  /// in backward.
  at::Tensor region(std::string_view name,
                    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& fn,
                    const std::vector<at::Tensor>& inputs);
  /// Sets whether regions keep only their inputs and run again in backward.
  void set_recompute_regions(bool on) { recompute_regions_ = on; }
  /// True if weight gradients should be deferred (zero-bubble schedules); then pass them to
  /// defer().
  [[nodiscard]] bool deferring() const { return deferring_; }
  void defer(std::function<void()> fn) { deferred_.push_back(std::move(fn)); }
  void set_deferring(bool on) { deferring_ = on; }
  /// Returns and forgets the deferred functions; the caller runs them, in that order and without
  /// grad mode.
  [[nodiscard]] std::vector<std::function<void()>> take_deferred() {
    return std::exchange(deferred_, {});
  }
  /// Runs the deferred functions in order and forgets them.
  void run_deferred();

 private:
  Mode mode_;
  std::uint64_t seed_;
  bool deferring_ = false;
  bool recompute_regions_ = false;
  std::vector<std::function<void()>> deferred_;
  std::map<std::pair<const Block*, std::type_index>, std::any> states_;
};

}  // namespace tessera::nn
