// SPDX-License-Identifier: Apache-2.0
// The MLP of a transformer layer: an input projection, an activation that may be gated, and an
// output projection.
#pragma once

#include <utility>
#include <vector>

#include "tessera/models/feed_forward.h"

namespace tessera::models {

FeedForward::Size size_of(const MlpSpec& spec);

/// output(dropout(activation(input(h)))), or output(dropout(activation(gate(h)) * input(h))).
class Mlp final : public FeedForward {
 public:
  /// Throws Error{Config} for an unknown activation.
  explicit Mlp(MlpSpec spec)
      : spec_(std::move(spec)), activation_(ops::activation_from_name(spec_.activation)) {}
  /// Declares `input_name`.weight [ffn, embed], or [2, ffn, embed] with the gate first,
  /// `output_name`.weight [embed, ffn] and the biases.
  void declare(nn::Params& params) override;
  at::Tensor operator()(const at::Tensor& h_BTC,
                        nn::StepContext& context,
                        std::vector<nn::Term>& terms) const override;
  [[nodiscard]] Size size() const override { return size_of(spec_); }

 private:
  MlpSpec spec_;
  ops::Activation activation_;
  Param* input_weight_ = nullptr;
  Param* input_bias_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* output_bias_ = nullptr;
};

}  // namespace tessera::models
