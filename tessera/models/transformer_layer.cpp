// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/transformer_layer.h"

#include <ATen/ATen.h>

#include "tessera/nn/functional.h"

// Legend: B batch, T tokens, C embed.
namespace tessera::models {

namespace {

// Names of the dropouts within a layer.
constexpr const char* kAfterAttention = "attention_output";
constexpr const char* kAfterMlp = "mlp_output";

}  // namespace

TransformerLayer::TransformerLayer(const LayerSpec& spec)
    : spec_(spec),
      attention_(spec.attention),
      feed_forward_(make_feed_forward(spec.mlp)),
      attention_norm_(spec.norm),
      mlp_norm_(spec.norm) {}

void TransformerLayer::declare(nn::Params& params) {
  const std::int64_t C = spec_.attention.hidden_size;
  attention_norm_.declare(params, spec_.attention_norm_name, C);
  attention_.declare(params);
  mlp_norm_.declare(params, spec_.mlp_norm_name, C);
  feed_forward_->declare(params);
}

nn::Outcome TransformerLayer::idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) {
  nn::Outcome out;
  const at::Tensor none = feed_forward_->idle(inputs, context);
  if (none.defined()) out.flow.diff = {none};
  return out;
}

nn::Outcome TransformerLayer::forward(nn::Flow in,
                                      const nn::Batch& batch,
                                      nn::StepContext& context) {
  const at::Tensor& x_BTC = in.diff.at(0);
  nn::Outcome out;
  switch (spec_.order) {
    case ResidualOrder::PostNorm:
      out.flow.diff = {post_norm(x_BTC, batch, context, out.terms)};
      break;
    case ResidualOrder::Parallel:
      out.flow.diff = {parallel(x_BTC, batch, context, out.terms)};
      break;
    case ResidualOrder::PreNorm:
      out.flow.diff = {pre_norm(x_BTC, batch, context, out.terms)};
      break;
  }
  return out;
}

at::Tensor TransformerLayer::pre_norm(const at::Tensor& x_BTC,
                                      const nn::Batch& batch,
                                      nn::StepContext& context,
                                      std::vector<nn::Term>& terms) const {
  const double p = spec_.residual_dropout;
  const nn::Normed begin = attention_norm_.residual(x_BTC, context);
  const at::Tensor y_BTC = attention_(begin.normed_BTC, batch, *this, context);
  const nn::Normed middle =
      mlp_norm_.residual(begin.x_BTC, context, y_BTC, context.dropout(kAfterAttention, p));
  const at::Tensor z_BTC = (*feed_forward_)(middle.normed_BTC, context, terms);
  return nn::add_dropout(middle.x_BTC, z_BTC, context.dropout(kAfterMlp, p));
}

at::Tensor TransformerLayer::post_norm(const at::Tensor& x_BTC,
                                       const nn::Batch& batch,
                                       nn::StepContext& context,
                                       std::vector<nn::Term>& terms) const {
  const double p = spec_.residual_dropout;
  const at::Tensor y_BTC = attention_(x_BTC, batch, *this, context);
  const at::Tensor middle_BTC =
      attention_norm_.residual(x_BTC, context, y_BTC, context.dropout(kAfterAttention, p))
          .normed_BTC;
  const at::Tensor z_BTC = (*feed_forward_)(middle_BTC, context, terms);
  return mlp_norm_.residual(middle_BTC, context, z_BTC, context.dropout(kAfterMlp, p)).normed_BTC;
}

at::Tensor TransformerLayer::parallel(const at::Tensor& x_BTC,
                                      const nn::Batch& batch,
                                      nn::StepContext& context,
                                      std::vector<nn::Term>& terms) const {
  const double p = spec_.residual_dropout;
  const nn::Normed for_attention = attention_norm_.residual(x_BTC, context);
  const nn::Normed for_mlp = mlp_norm_.residual(for_attention.x_BTC, context);
  const at::Tensor y_BTC = attention_(for_attention.normed_BTC, batch, *this, context);
  const at::Tensor z_BTC = (*feed_forward_)(for_mlp.normed_BTC, context, terms);
  const at::Tensor with_attention_BTC =
      nn::add_dropout(for_mlp.x_BTC, y_BTC, context.dropout(kAfterAttention, p));
  return nn::add_dropout(with_attention_BTC, z_BTC, context.dropout(kAfterMlp, p));
}

}  // namespace tessera::models
