// SPDX-License-Identifier: Apache-2.0
// The MLP of a transformer layer: a projection, an activation that may be a gate, and a projection
// back.
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
  std::string input_name, output_name;  ///< of the two projections: "mlp.c_fc", "mlp.c_proj"
  bool bias = true;                     ///< of both
  Init input_init, output_init;         ///< of the weights
  std::string activation = "gelu_tanh";
  /// The input projection makes two halves, of which the activation of the first multiplies the
  /// second.
  bool gated = false;
  double dropout = 0.0;  ///< between the two projections
};

/// output(dropout(activation(input(h)))), or output(dropout(activation(gate(h)) * input(h))).
class Mlp {
 public:
  /// Error{Config} for an unknown activation.
  explicit Mlp(MlpSpec spec)
      : spec_(std::move(spec)), activation_(ops::activation_from_name(spec_.activation)) {}
  /// Declares `input_name`.weight [ffn, embed], or [2, ffn, embed] with the gate first,
  /// `output_name`.weight [embed, ffn] and the biases.
  void declare(nn::Params& params);
  /// h [B, T, C], normalized -> the branch [B, T, C].
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
