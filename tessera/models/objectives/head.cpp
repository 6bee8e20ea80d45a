// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/objectives/head.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/activation.h"

namespace tessera::models {
namespace {

using enum LogicalAxis;

/// Dropout of the result of gather_flow(), which has all samples and channels, also on a grid of
/// ranks. Of `x` [B, C] every rank has all values; of [B, T, C] it has its own tokens.
ops::DropoutKey dropout_of_all(const char* site,
                               double p,
                               const at::Tensor& x,
                               const nn::StepContext& context) {
  ops::DropoutKey key = context.dropout(site, p);
  if (key.active() && (context.splits_samples() || x.dim() == 2))
    key = {.p = key.p, .key = key.key, .sample_ids = context.batch->sample_ids};
  return key;
}

}  // namespace

void HeadTransform::declare(nn::Params& params, const TrunkOutput& trunk) {
  if (spec_.dense.empty()) return;
  const std::int64_t C = trunk.hidden_size;
  // No logical axes: the weight is so small that every tensor-parallel rank holds all of it.
  weight_ = params.add(spec_.dense + ".weight",
                       {C, C},
                       {None, None},
                       trunk.init(trunk.heads.dense_std),
                       kGlobalName);
  if (spec_.dense_bias)
    bias_ = params.add(spec_.dense + ".bias", {C}, {None}, Init::zeros(), kGlobalName);
  norm_.declare(params, spec_.norm_name, C, kGlobalName);
}

at::Tensor HeadTransform::activated(at::Tensor x, nn::StepContext& context) const {
  if (spec_.input_dropout > 0)
    x = nn::dropout(x, dropout_of_all("head_input", spec_.input_dropout, x, context));
  x = nn::linear(x, *weight_, bias_, context);
  return spec_.activation == "tanh" ? at::tanh(x)
                                    : nn::activate(x, ops::activation_from_name(spec_.activation));
}

at::Tensor HeadTransform::normed(const at::Tensor& x, nn::StepContext& context) const {
  if (!context.splits_samples() || spec_.norm.kind == NormKind::None) return norm_(x, context);
  // Ranks of a grid share the channels of a norm.
  const at::Tensor x_BTC = x.dim() == 2 ? x.unsqueeze(1) : x;
  return nn::gather_flow(norm_(nn::take_flow(x_BTC, context), context), context).view(x.sizes());
}

at::Tensor HeadTransform::operator()(at::Tensor x, nn::StepContext& context) const {
  if (!spec_.dense.empty()) x = normed(activated(x, context), context);
  if (spec_.dropout > 0) x = nn::dropout(x, dropout_of_all("head", spec_.dropout, x, context));
  return x;
}

at::Tensor HeadTransform::in_flow(at::Tensor x, nn::StepContext& context) const {
  if (!context.splits_samples()) return (*this)(x, context);
  if (!spec_.dense.empty()) {
    const at::Tensor all = activated(nn::gather_flow(x, context), context);
    x = norm_(nn::take_flow(all, context), context);
  }
  return nn::dropout(x, context.dropout("head", spec_.dropout));
}

void Head::declare(nn::Params& params, const TrunkOutput& trunk) {
  transform_.declare(params, trunk);
  const HeadSpec& spec = transform_.spec();
  weight_ = params.add(spec.output + ".weight",
                       {outputs_, trunk.hidden_size},
                       {None, None},
                       trunk.init(spec.output_std),
                       kGlobalName);
  if (!spec.output_bias.empty())
    bias_ = params.add(spec.output_bias, {outputs_}, {None}, Init::zeros(), kGlobalName);
}

at::Tensor Head::operator()(const at::Tensor& x, nn::StepContext& context) const {
  return nn::vocab_logits(transform_(x, context), *weight_, bias_, context);
}

at::Tensor last_tokens(const nn::Batch& batch, const nn::StepContext& context) {
  const at::Tensor& ids_BT = batch.tensor("input_ids");
  const std::int64_t shares = context.shares_tokens() ? context.context_parallel->group->size() : 1;
  const std::int64_t tokens = ids_BT.size(1) * shares;
  if (!batch.has("attention_mask")) return at::full({batch.size()}, tokens - 1, ids_BT.options());
  const at::Tensor mask_BT = batch.tensor("attention_mask").ne(0);
  const at::Tensor positions_T = at::arange(tokens, mask_BT.options().dtype(at::kLong));
  return (positions_T * mask_BT).amax(1);
}

at::Tensor pooled(const at::Tensor& x_BTC,
                  Pooling pooling,
                  const Norm& norm,
                  const nn::Batch& batch,
                  nn::StepContext& context) {
  if (pooling == Pooling::Mean) {
    TESSERA_REQUIRE(
        !batch.has("pixel_values") || (!context.shares_tokens() && !context.cuts_tokens()),
        Unsupported,
        "the mean of the patches of an image, which ranks share, would count the "
        "padding behind them",
        "set parallel.sequence to false and parallel.context.size to 1");
    const at::Tensor mask_BS =
        batch.has("attention_mask") ? batch.tensor("attention_mask") : at::Tensor();
    return nn::mean_of_tokens(nn::gather_flow(norm(x_BTC, context), context), mask_BS, context);
  }
  const at::Tensor positions_B = pooling == Pooling::LastToken
                                     ? last_tokens(batch, context)
                                     : at::zeros({batch.size()}, x_BTC.options().dtype(at::kLong));
  const at::Tensor one_B1C = nn::select_tokens(x_BTC, positions_B, context);
  return nn::gather_flow(norm(one_B1C, context), context).squeeze(1);
}

void require_no_generation(const nn::StepContext& context, const char* objective) {
  TESSERA_REQUIRE(context.mode() == nn::Mode::Train || context.mode() == nn::Mode::Eval,
                  Unsupported,
                  fmt::format("a model with the objective {} does not generate text", objective),
                  "generate with a model whose objective is causal_lm");
}

}  // namespace tessera::models
