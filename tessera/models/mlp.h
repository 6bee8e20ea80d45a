// SPDX-License-Identifier: Apache-2.0
// The MLPs of transformer layers: two projections and an activation between them, or a gate.
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
};

/// output(activation(input(h))).
class Mlp {
 public:
  /// Error{Config} for an unknown activation.
  explicit Mlp(MlpSpec spec)
      : spec_(std::move(spec)), activation_(ops::activation_from_name(spec_.activation)) {}
  /// Declares `input_name`.weight [ffn, embed], `output_name`.weight [embed, ffn] and the biases.
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

struct GatedMlpSpec {
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::string input_name, output_name;  ///< of the two projections: "mlp.gate_up_proj"
  bool bias = false;                    ///< of both
  Init input_init, output_init;         ///< of the weights
  std::string activation = "silu";      ///< of the gate
  double dropout = 0.0;                 ///< on what the gate lets through
};

/// output(activation(gate(h)) * up(h)), where one projection makes gate and up.
class GatedMlp {
 public:
  /// Error{Config} for an unknown activation.
  explicit GatedMlp(GatedMlpSpec spec)
      : spec_(std::move(spec)), activation_(ops::activation_from_name(spec_.activation)) {}
  /// Declares `input_name`.weight [2, ffn, embed], the gate first, `output_name`.weight [embed,
  /// ffn] and the biases.
  void declare(nn::Params& params);
  /// h [B, T, C], normalized -> the branch [B, T, C]. Error{Unsupported} for dropout where ranks
  /// share the features.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& h_BTC, nn::StepContext& context) const;

 private:
  GatedMlpSpec spec_;
  ops::Activation activation_;
  Param* input_weight_ = nullptr;
  Param* input_bias_ = nullptr;
  Param* output_weight_ = nullptr;
  Param* output_bias_ = nullptr;
};

}  // namespace tessera::models
