// SPDX-License-Identifier: Apache-2.0
// The normalization that a model family uses, chosen once by its specification.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/nn/functional.h"

namespace tessera::models {

enum class NormKind : std::uint8_t {
  LayerNorm,  ///< mean and variance, with a weight and, by default, a bias
  RmsNorm,    ///< root mean square, with a weight
  None        ///< no normalization: for a trunk whose last layer ends with its own
};

struct NormSpec {
  NormKind kind = NormKind::LayerNorm;
  double eps = 1e-5;
  double offset = 0.0;  ///< added to the weight of an RmsNorm, whose initial value is 1 - offset
  bool bias = true;     ///< only for LayerNorm
};

/// A normalization layer over the channels of the residual stream.
class Norm {
 public:
  explicit Norm(NormSpec spec) : spec_(spec) {}
  /// Declares `name`.weight, and `name`.bias for a LayerNorm with a bias; nothing for
  /// NormKind::None.
  void declare(nn::Params& params,
               const std::string& name,
               std::int64_t channels,
               const nn::Params::Tags& tags = {});
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x_BTC, nn::StepContext& context) const;
  /// Adds dropout(branch) to the residual stream x and normalizes the sum: see
  /// nn::residual_layer_norm(). Without a branch it normalizes the stream itself.
  [[nodiscard]] nn::Normed residual(const at::Tensor& x_BTC,
                                    nn::StepContext& context,
                                    const at::Tensor& branch_BTC = {},
                                    const ops::DropoutKey& key = {}) const;

 private:
  NormSpec spec_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

}  // namespace tessera::models
