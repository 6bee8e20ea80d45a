// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/mlp.h"

#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed, F ffn.
namespace tessera::models {

using enum LogicalAxis;

void Mlp::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, F = spec_.ffn_hidden_size;
  const std::string input = spec_.input_name + ".weight", bias = spec_.input_name + ".bias";
  if (spec_.gated) {
    input_weight_ = params.add(
        input, {2, F, C}, {None, Ffn, Embed}, spec_.input_init, {.matrix_shape = {2 * F, C}});
    if (spec_.bias)
      input_bias_ = params.add(bias, {2, F}, {None, Ffn}, Init::zeros(), {.matrix_shape = {2 * F}});
  } else {
    input_weight_ = params.add(input, {F, C}, {Ffn, Embed}, spec_.input_init);
    if (spec_.bias) input_bias_ = params.add(bias, {F}, {Ffn}, Init::zeros());
  }
  output_weight_ =
      params.add(spec_.output_name + ".weight", {C, F}, {Embed, Ffn}, spec_.output_init);
  if (spec_.bias)
    output_bias_ = params.add(spec_.output_name + ".bias", {C}, {Embed}, Init::zeros());
}

at::Tensor Mlp::operator()(const at::Tensor& h_BTC,
                           nn::StepContext& context,
                           std::vector<nn::Term>& /*terms*/) const {
  const at::Tensor wide = nn::linear(h_BTC, *input_weight_, input_bias_, context);
  at::Tensor f_BTF = spec_.gated ? nn::gated(wide, activation_) : nn::activate(wide, activation_);
  const ops::DropoutKey key = context.dropout("mlp_hidden", spec_.dropout);
  if (key.active()) f_BTF = nn::dropout_features(f_BTF, *input_weight_, key, context);
  return nn::linear(f_BTF, *output_weight_, output_bias_, context);
}

FeedForward::Size size_of(const MlpSpec& spec) {
  const std::int64_t C = spec.hidden_size, F = spec.ffn_hidden_size,
                     inputs = spec.gated ? 2 * F : F;
  const std::int64_t weights = (inputs + F) * C, biases = spec.bias ? inputs + C : 0;
  return {weights + biases, weights + biases, 2.0 * static_cast<double>(weights)};
}

}  // namespace tessera::models
