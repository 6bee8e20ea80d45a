// SPDX-License-Identifier: Apache-2.0
// The description of a layer's MLP.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/tensor/param.h"

namespace tessera::models {

/// Two projections around an activation (mlp.h).
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

}  // namespace tessera::models
