// SPDX-License-Identifier: Apache-2.0
// The MLP of a transformer layer: an input projection, an activation that may be gated, and an
// output projection.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

struct MlpSpec {
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::string input_name, output_name;  ///< names of the two projections: "mlp.c_fc", "mlp.c_proj"
  bool bias = true;                     ///< of both projections
  Init input_init, output_init;         ///< initial weights
  std::string activation = "gelu_tanh";
  /// The input projection computes gate and up parts; the output is activation(gate) * up.
  bool gated = false;
  double dropout = 0.0;  ///< between the two projections
};

/// output(dropout(activation(input(h)))), or output(dropout(activation(gate(h)) * input(h))).
class Mlp {
 public:
  /// Throws Error{Config} for an unknown activation.
  explicit Mlp(MlpSpec spec)
      : spec_(std::move(spec)), activation_(ops::activation_from_name(spec_.activation)) {}
  /// Declares `input_name`.weight [ffn, embed], or [2, ffn, embed] with the gate first,
  /// `output_name`.weight [embed, ffn] and the biases.
  void declare(nn::Params& params);
  /// Maps normalized h [B, T, C] to the branch [B, T, C].
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC, nn::StepContext& context) const;

 private:
  MlpSpec spec_;
  ops::Activation activation_;
  Param* input_weight_ = nullptr;
  Param* input_bias_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* output_bias_ = nullptr;
};

}  // namespace tessera::models
