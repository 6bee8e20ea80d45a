// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/norm.h"

namespace tessera::models {

using enum LogicalAxis;

void Norm::declare(nn::Params& params,
                   const std::string& name,
                   std::int64_t channels,
                   const nn::Params::Tags& tags) {
  if (spec_.kind == NormKind::None) return;
  const Init init = spec_.offset == 0.0 ? Init::ones() : Init::zeros();
  weight_ = params.add(name + ".weight", {channels}, {Embed}, init, tags);
  if (spec_.kind == NormKind::LayerNorm && spec_.bias)
    bias_ = params.add(name + ".bias", {channels}, {Embed}, Init::zeros(), tags);
}

at::Tensor Norm::operator()(const at::Tensor& x_BTC, nn::StepContext& context) const {
  return residual(x_BTC, context).normed_BTC;
}

nn::Normed Norm::residual(const at::Tensor& x_BTC,
                          nn::StepContext& context,
                          const at::Tensor& branch_BTC,
                          const ops::DropoutKey& key) const {
  if (spec_.kind == NormKind::None) {
    const at::Tensor sum = branch_BTC.defined() ? nn::add_dropout(x_BTC, branch_BTC, key) : x_BTC;
    return {sum, sum};
  }
  if (spec_.kind == NormKind::RmsNorm)
    return nn::residual_rms_norm(
        x_BTC, branch_BTC, key, *weight_, spec_.eps, context, spec_.offset);
  return nn::residual_layer_norm(x_BTC, branch_BTC, key, *weight_, bias_, spec_.eps, context);
}

}  // namespace tessera::models
