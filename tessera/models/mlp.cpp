// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/mlp.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed, F ffn.
namespace tessera::models {

using enum LogicalAxis;

void Mlp::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, F = spec_.ffn_hidden_size;
  input_weight_ = params.add(spec_.input_name + ".weight", {F, C}, {Ffn, Embed}, spec_.input_init);
  if (spec_.bias) input_bias_ = params.add(spec_.input_name + ".bias", {F}, {Ffn}, Init::zeros());
  output_weight_ =
      params.add(spec_.output_name + ".weight", {C, F}, {Embed, Ffn}, spec_.output_init);
  if (spec_.bias)
    output_bias_ = params.add(spec_.output_name + ".bias", {C}, {Embed}, Init::zeros());
}

at::Tensor Mlp::operator()(const at::Tensor& h_BTC, nn::StepContext& context) const {
  const at::Tensor f_BTF =
      nn::activate(nn::linear(h_BTC, *input_weight_, input_bias_, context), activation_);
  return nn::linear(f_BTF, *output_weight_, output_bias_, context);
}

void GatedMlp::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, F = spec_.ffn_hidden_size;
  input_weight_ = params.add(spec_.input_name + ".weight",
                             {2, F, C},
                             {None, Ffn, Embed},
                             spec_.input_init,
                             {.matrix_shape = {2 * F, C}});
  if (spec_.bias) {
    input_bias_ = params.add(
        spec_.input_name + ".bias", {2, F}, {None, Ffn}, Init::zeros(), {.matrix_shape = {2 * F}});
  }
  output_weight_ =
      params.add(spec_.output_name + ".weight", {C, F}, {Embed, Ffn}, spec_.output_init);
  if (spec_.bias)
    output_bias_ = params.add(spec_.output_name + ".bias", {C}, {Embed}, Init::zeros());
}

at::Tensor GatedMlp::operator()(const at::Tensor& h_BTC, nn::StepContext& context) const {
  at::Tensor f_BTF =
      nn::gated(nn::linear(h_BTC, *input_weight_, input_bias_, context), activation_);
  const ops::DropoutKey key = context.dropout("mlp", spec_.dropout);
  TESSERA_REQUIRE(!key.active() || context.tensor == nullptr,
                  Unsupported,
                  fmt::format("dropout inside the MLP of block {}, whose features ranks share",
                              context.block_name),
                  "set model.mlp_dropout to 0, or parallel.tensor.size to 1");
  if (key.active()) f_BTF = nn::dropout(f_BTF, key);
  return nn::linear(f_BTF, *output_weight_, output_bias_, context);
}

}  // namespace tessera::models
