// SPDX-License-Identifier: Apache-2.0
// The layers of a head that a family's HeadSpec describes, and the hidden states that a head for
// whole samples reads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {

// Legend: B batch, T tokens, C embed, L outputs.

/// The layers of a head before its output layer. Their weights are not split over ranks: they
/// process the result of nn::gather_flow(), which has all samples and channels.
class HeadTransform {
 public:
  explicit HeadTransform(HeadSpec spec) : spec_(std::move(spec)), norm_(spec_.norm) {}
  /// Declares the dense layer and the norm of the specification.
  void declare(nn::Params& params, const TrunkOutput& trunk);
  /// x [..., C] -> [..., C].
  [[nodiscard]] at::Tensor operator()(at::Tensor x, nn::StepContext& context) const;
  /// Does the same with x as ranks hold it between layers, and returns the result in that
  /// placement.
  [[nodiscard]] at::Tensor in_flow(at::Tensor x, nn::StepContext& context) const;
  [[nodiscard]] const HeadSpec& spec() const { return spec_; }

 private:
  [[nodiscard]] at::Tensor activated(at::Tensor x, nn::StepContext& context) const;
  [[nodiscard]] at::Tensor normed(const at::Tensor& x, nn::StepContext& context) const;

  HeadSpec spec_;
  Norm norm_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// A head with few outputs, such as classes.
class Head {
 public:
  Head(HeadSpec spec, std::int64_t outputs) : transform_(std::move(spec)), outputs_(outputs) {}
  void declare(nn::Params& params, const TrunkOutput& trunk);
  /// x [..., C] -> logits [..., L], fp32.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, nn::StepContext& context) const;

 private:
  HeadTransform transform_;
  std::int64_t outputs_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

/// Returns the position of each sample's last token that is not padding, [B]. If ranks share the
/// tokens of a sample, positions count the tokens of all of them.
at::Tensor last_tokens(const nn::Batch& batch, const nn::StepContext& context);

/// Selects the hidden state of each sample that a head reads, x [B, T, C] -> [B, C] of all samples
/// and channels, normalized by `norm`, the trunk's last norm. Padding has 0 in the batch's
/// "attention_mask". Every rank gets the result, whichever ranks hold the tokens; what a head
/// computes from it must pass through nn::shared_gradient().
at::Tensor pooled(const at::Tensor& x_BTC,
                  Pooling pooling,
                  const Norm& norm,
                  const nn::Batch& batch,
                  nn::StepContext& context);

/// Throws Error{Unsupported} if the context generates text, which a model with `objective` cannot
/// do.
void require_no_generation(const nn::StepContext& context, const char* objective);

}  // namespace tessera::models
