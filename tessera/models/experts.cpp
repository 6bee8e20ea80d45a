// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/experts.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/nn/embedding_noise.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/local_layers.h"

// Legend: B batch, T tokens, C channels, F width of an expert, E experts.
namespace tessera::models {

using enum LogicalAxis;

namespace {

MlpSpec shared_of(const ExpertsSpec& spec) {
  return {.hidden_size = spec.hidden_size,
          .ffn_hidden_size = spec.shared.ffn_hidden_size,
          .input_name = spec.shared.input_name,
          .output_name = spec.shared.output_name,
          .bias = spec.bias,
          .input_init = spec.input_init,
          .output_init = spec.output_init,
          .activation = spec.activation.name,
          .gated = spec.activation.gated};
}

bool gated(const ExpertsSpec& spec) {
  return spec.activation.gated || spec.activation.clamp > 0.0;
}

}  // namespace

Experts::Experts(ExpertsSpec spec)
    : spec_(std::move(spec)),
      form_({.activation = ops::activation_from_name(spec_.activation.name),
             .gated = gated(spec_),
             .clamp = spec_.activation.clamp}) {
  if (spec_.shared.ffn_hidden_size > 0) shared_ = std::make_unique<Mlp>(shared_of(spec_));
}

void Experts::declare(nn::Params& params) {
  const std::int64_t C = spec_.hidden_size, F = spec_.ffn_hidden_size, E = spec_.num_experts;
  const std::string &router = spec_.router_name, &input = spec_.input_name,
                    &output = spec_.output_name;
  weights_.router = params.add(router + ".weight", {E, C}, {None, Embed}, spec_.router_init);
  if (spec_.router.bias)
    weights_.router_bias = params.add(router + ".bias", {E}, {None}, Init::zeros());
  if (spec_.router.correction) {
    weights_.correction =
        params.add(spec_.correction_name, {E}, {None}, Init::zeros(), {.trainable = false});
  }
  if (form_.gated) {
    weights_.input = params.add(input + ".weight",
                                {E, 2, F, C},
                                {Expert, None, Ffn, Embed},
                                spec_.input_init,
                                {.matrix_shape = {2 * F, C}});
    if (spec_.bias) {
      weights_.input_bias = params.add(input + ".bias",
                                       {E, 2, F},
                                       {Expert, None, Ffn},
                                       Init::zeros(),
                                       {.matrix_shape = {2 * F}});
    }
  } else {
    weights_.input =
        params.add(input + ".weight", {E, F, C}, {Expert, Ffn, Embed}, spec_.input_init);
    if (spec_.bias)
      weights_.input_bias = params.add(input + ".bias", {E, F}, {Expert, Ffn}, Init::zeros());
  }
  weights_.output =
      params.add(output + ".weight", {E, C, F}, {Expert, Embed, Ffn}, spec_.output_init);
  if (spec_.bias)
    weights_.output_bias = params.add(output + ".bias", {E, C}, {Expert, Embed}, Init::zeros());
  if (!spec_.sum_bias_name.empty())
    sum_bias_ = params.add(spec_.sum_bias_name, {C}, {Embed}, Init::zeros());
  if (shared_ == nullptr) return;
  shared_->declare(params);
  if (!spec_.shared.gate_name.empty()) {
    shared_gate_ =
        params.add(spec_.shared.gate_name + ".weight", {1, C}, {None, Embed}, spec_.router_init);
  }
}

at::Tensor Experts::operator()(const at::Tensor& h_BTC,
                               nn::StepContext& context,
                               std::vector<nn::Term>& terms) const {
  return apply(h_BTC, context, terms, nullptr);
}

at::Tensor Experts::pooled(const at::Tensor& h_BTC,
                           nn::StepContext& context,
                           std::vector<nn::Term>& terms,
                           nn::PooledBalance& sums) const {
  return apply(h_BTC, context, terms, &sums);
}

at::Tensor Experts::apply(const at::Tensor& h_BTC,
                          nn::StepContext& context,
                          std::vector<nn::Term>& terms,
                          nn::PooledBalance* sums) const {
  at::Tensor seen_BTC = h_BTC;  // by the router
  if (spec_.jitter > 0.0 && context.training()) {
    const ops::DropoutKey key = context.dropout("router_jitter", 1.0);
    const at::Tensor exact_BTC = h_BTC.to(at::kFloat);
    seen_BTC =
        exact_BTC * (nn::uniform_noise(exact_BTC, key, static_cast<float>(spec_.jitter)) + 1.0);
  }
  const nn::Routed routed = nn::route(seen_BTC, weights_, spec_.router, spec_.capacity, context);
  if (context.training()) nn::add_balance_terms(routed, spec_.balance, context, terms);
  if (sums != nullptr) *sums = nn::add_to_pool(*sums, routed, spec_.balance, context);
  at::Tensor y_BTC = nn::apply_experts(
      h_BTC, routed, weights_, form_, spec_.router.weighs_inputs, &load_, context);
  if (sum_bias_ != nullptr) y_BTC = nn::detail::add_bias(y_BTC, *sum_bias_, context);
  return shared_ == nullptr ? y_BTC : y_BTC + shared(h_BTC, context, terms);
}

at::Tensor Experts::shared(const at::Tensor& h_BTC,
                           nn::StepContext& context,
                           std::vector<nn::Term>& terms) const {
  const at::Tensor y_BTC = (*shared_)(h_BTC, context, terms);
  if (shared_gate_ == nullptr) return y_BTC;
  return nn::sigmoid_gate(y_BTC, nn::linear(h_BTC, *shared_gate_, nullptr, context));
}

at::Tensor Experts::idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const {
  if (context.experts == nullptr) return {};
  inputs.push_back(at::empty({0, spec_.hidden_size}, weights_.router->tensor().options())
                       .set_requires_grad(at::GradMode::is_enabled()));
  return nn::apply_experts(inputs.back(),
                           nn::route_nothing(spec_.num_experts, spec_.router.top_k),
                           weights_,
                           form_,
                           spec_.router.weighs_inputs,
                           /*load=*/nullptr,
                           context);
}

nn::HasExperts::Router Experts::router() const {
  return {.load = &load_,
          .num_experts = spec_.num_experts,
          .top_k = spec_.router.top_k,
          .correction = weights_.correction,
          .correction_rate = spec_.router.correction_rate,
          .drops = spec_.capacity.limits()};
}

FeedForward::Size size_of(const ExpertsSpec& spec) {
  const std::int64_t C = spec.hidden_size, F = spec.ffn_hidden_size, E = spec.num_experts,
                     inputs = gated(spec) ? 2 * F : F;
  const std::int64_t weights = (inputs + F) * C, expert = weights + (spec.bias ? inputs + C : 0),
                     router = E * C + (spec.router.bias ? E : 0) + (spec.router.correction ? E : 0);
  FeedForward::Size out;
  if (spec.shared.ffn_hidden_size > 0) {
    out = size_of(shared_of(spec));
    if (!spec.shared.gate_name.empty()) {
      out.total += C;
      out.active += C;
      out.flops_a_token += 2.0 * static_cast<double>(C);
    }
  }
  const std::int64_t common = router + (spec.sum_bias_name.empty() ? 0 : C);
  out.total += common + E * expert;
  out.active += common + spec.router.top_k * expert;
  out.flops_a_token += 2.0 * static_cast<double>(E * C + spec.router.top_k * weights);
  return out;
}

}  // namespace tessera::models
