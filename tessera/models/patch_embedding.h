// SPDX-License-Identifier: Apache-2.0
// Images as tokens: a class token, then a linear projection of each patch. Source: Dosovitskiy et
// al. 2021, "An image is worth 16x16 words".
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"

namespace tessera::models {

struct PatchSpec {
  std::int64_t image_size = 224, patch_size = 16, num_channels = 3;
  std::int64_t hidden_size = 0;
  std::string class_name;  ///< of the class token's vector, within the block: "cls_token"
  std::string projection;  ///< module of the projection: "patch_embeddings.projection"
  bool bias = true;        ///< of the projection
  Init init = {};

  [[nodiscard]] std::int64_t patches() const {
    return (image_size / patch_size) * (image_size / patch_size);
  }
  /// Number of tokens of an image, including the class token.
  [[nodiscard]] std::int64_t tokens() const { return patches() + 1; }
};

class PatchEmbedding {
 public:
  explicit PatchEmbedding(PatchSpec spec) : spec_(std::move(spec)) {}
  /// Declares the class token's vector [1, hidden_size] and the projection [hidden_size,
  /// num_channels, patch_size, patch_size].
  void declare(nn::Params& params);
  /// The tokens [images, spec.tokens(), hidden_size] of the batch's "pixel_values" [images,
  /// num_channels, image_size, image_size], of any float type; nn::take_tokens() selects those of
  /// a rank. Throws Error{Shape} for others.
  [[nodiscard]] at::Tensor operator()(const nn::Batch& batch, nn::StepContext& context) const;

 private:
  void check(const at::Tensor& pixels) const;
  [[nodiscard]] std::int64_t patch_values() const;
  [[nodiscard]] at::Tensor patches_of(const at::Tensor& pixels) const;

  PatchSpec spec_;
  Param* class_ = nullptr;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
};

}  // namespace tessera::models
