// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/patch_embedding.h"

#include <array>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/padded_tokens.h"

// Legend: B images, I channels of an image, P rows or columns of a patch, N patches, C embed.
namespace tessera::models {

using enum LogicalAxis;

std::int64_t PatchEmbedding::patch_values() const {
  return spec_.num_channels * spec_.patch_size * spec_.patch_size;
}

void PatchEmbedding::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, P = spec_.patch_size;
  class_ = params.add(
      spec_.class_name, {1, C}, {None, Embed}, spec_.init, {.role = Role::PositionTable});
  weight_ = params.add(spec_.projection + ".weight",
                       {C, spec_.num_channels, P, P},
                       {None, None, None, None},
                       spec_.init,
                       {.matrix_shape = {C, patch_values()}});
  if (spec_.bias) bias_ = params.add(spec_.projection + ".bias", {C}, {None}, Init::zeros());
}

at::Tensor PatchEmbedding::operator()(const nn::Batch& batch, nn::StepContext& context) const {
  const at::Tensor& pixels = batch.tensor("pixel_values");
  check(pixels);
  const at::Tensor& weight = weight_->tensor();
  const at::Tensor x_BNC = at::linear(patches_of(pixels).to(weight.scalar_type()),
                                      weight.flatten(1),
                                      bias_ == nullptr ? at::Tensor() : bias_->tensor());
  const auto ids = x_BNC.options().dtype(at::kLong);
  const at::Tensor class_B1C =
      nn::whole_embedding(at::zeros({pixels.size(0), 1}, ids), *class_, context);
  // The projection is small: every rank of a grid computes all of it, and takes its part.
  return at::cat({class_B1C, nn::take_flow(x_BNC, context)}, 1);
}

void PatchEmbedding::check(const at::Tensor& pixels) const {
  const std::array<std::int64_t, 3> wanted = {
      spec_.num_channels, spec_.image_size, spec_.image_size};
  TESSERA_REQUIRE(
      pixels.dim() == 4 && pixels.sizes().slice(1) == at::IntArrayRef(wanted) &&
          at::isFloatingType(pixels.scalar_type()),
      Shape,
      fmt::format("the batch's \"pixel_values\" have {} dimensions and the type {}",
                  pixels.dim(),
                  c10::toString(pixels.scalar_type())),
      fmt::format("give floats [images, {}, {}, {}]: images of another size are to be scaled",
                  wanted[0],
                  wanted[1],
                  wanted[2]));
}

/// [B, I, H, W] -> [B, N, I * P * P]: the convolution is a linear layer on these.
at::Tensor PatchEmbedding::patches_of(const at::Tensor& pixels) const {
  const std::int64_t P = spec_.patch_size, side = spec_.image_size / P;
  return pixels.reshape({pixels.size(0), spec_.num_channels, side, P, side, P})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({pixels.size(0), side * side, patch_values()});
}

}  // namespace tessera::models
