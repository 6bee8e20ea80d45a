// SPDX-License-Identifier: Apache-2.0
// The normalization that a model family uses, chosen once by its specification.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/nn/functional.h"

namespace tessera::models {

enum class NormKind : std::uint8_t {
  LayerNorm,  ///< mean and variance, with a weight and, unless said otherwise, a bias
  RmsNorm,    ///< root mean square, with a weight
  None        ///< no normalization: of a trunk whose last layer ends with its own
};

struct NormSpec {
  NormKind kind = NormKind::LayerNorm;
  double eps = 1e-5;
  double offset = 0.0;  ///< what is added to the weight of an RmsNorm, which begins at 1 - offset
  bool bias = true;     ///< of a LayerNorm
};

/// A normalization layer over the channels of the residual stream.
class Norm {
 public:
  explicit Norm(NormSpec spec) : spec_(spec) {}
  /// Declares `name`.weight, and `name`.bias of a LayerNorm that has one; nothing for
  /// NormKind::None.
  void declare(nn::Params& params,
               const std::string& name,
               std::int64_t channels,
               const nn::Params::Tags& tags = {});
  /// See nn::Block::grid_obstacle().
  [[nodiscard]] std::string grid_obstacle() const;
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x_BTC, nn::StepContext& context) const;
  /// Adds dropout(branch) to the residual stream x and normalizes the sum: see
  /// nn::residual_layer_norm(). Without a branch the stream itself is normalized.
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
