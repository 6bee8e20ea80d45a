// SPDX-License-Identifier: Apache-2.0
// The layers of a head as a family's HeadSpec describes them, and the hidden states that a head of
// whole samples reads.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/models/trunk.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {

// Legend: B batch, T tokens, C embed, L outputs.

/// What a head has before its output layer. No rank holds a part of it: it works on what
/// nn::gather_flow() gives, of all samples and channels.
class HeadTransform {
 public:
  explicit HeadTransform(HeadSpec spec) : spec_(std::move(spec)), norm_(spec_.norm) {}
  /// Declares the dense layer and the norm that the specification names.
  void declare(nn::Params& params, const TrunkOutput& trunk);
  /// x [..., C] -> [..., C].
  [[nodiscard]] at::Tensor operator()(at::Tensor x, nn::StepContext& context) const;
  [[nodiscard]] const HeadSpec& spec() const { return spec_; }

 private:
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

/// The hidden state of each sample that a head reads, x [B, T, C] -> [B, C] of all samples and
/// channels: normalized by `norm`, the trunk's last one. Padding is where the batch's
/// "attention_mask" is 0. Every rank has it, whichever of them have the tokens: what a head makes
/// of it goes through nn::shared_gradient().
at::Tensor pooled(const at::Tensor& x_BTC,
                  Pooling pooling,
                  const Norm& norm,
                  const nn::Batch& batch,
                  nn::StepContext& context);

/// Error{Unsupported} where the context makes text, which a model with `objective` does not.
void require_no_generation(const nn::StepContext& context, const char* objective);

}  // namespace tessera::models
