// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// The router's weight in fp32, from any form in which it is held.
at::Tensor in_fp32(const Param& weight) {
  if (!weight.scales().defined()) return weight.tensor().detach().to(at::kFloat);
  return ops::from_int8({matrix(weight.tensor()), weight.scales()}, at::kFloat);
}

/// Logits in fp32, whatever the dtype of the tokens and of the weight.
struct LogitsNode : torch::autograd::Function<LogitsNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_NC,
                            const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& bias,
                            Use use) {
    save(node, {x_NC});
    const at::Tensor logits = ops::linear(x_NC.to(at::kFloat),
                                          in_fp32(*use.weight),
                                          bias ? bias->detach().to(at::kFloat) : at::Tensor());
    keep(node, use);
    return logits;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const at::Tensor x = node->get_saved_variables()[0];
    const Use& use = kept<Use>(node);
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx;
    if (node->needs_input_grad(0))
      dx = ops::linear_input_grad(dy, in_fp32(*use.weight)).to(x.scalar_type());
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy, x, w = use.weight] {
        GradSink& sink = w->grad();
        ops::linear_weight_grad(dy, x.to(at::kFloat), sink.out(), sink.accumulate());
        sink.written();
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] {
        GradSink& sink = b->grad();
        ops::linear_bias_grad(dy, sink.out(), sink.accumulate());
        sink.written();
      });
    }
    return {dx, {}, {}, {}};
  }
};

/// Weights and scores of the chosen experts, from the logits.
struct ChooseNode : torch::autograd::Function<ChooseNode> {
  struct Use {
    std::shared_ptr<const ops::Choices> choices;
    ops::RouterSpec spec;
    ops::CapacitySpec capacity;
  };
  static variable_list forward(AutogradContext* node, const at::Tensor& logits_NE, Use use) {
    save(node, {logits_NE});
    const at::Tensor weights = use.choices->weights_NK.alias(),
                     scores = use.choices->scores_NE.alias();
    keep(node, std::move(use));
    return {weights, scores};
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use& use = kept<Use>(node);
    return {ops::choose_experts_backward(grads[0],
                                         grads[1],
                                         node->get_saved_variables()[0],
                                         *use.choices,
                                         use.spec,
                                         use.capacity),
            {}};
  }
};

/// The sum over the ranks that share the tokens of a micro-batch; empty: this rank has all.
ops::SumOverRanks sum_over_tokens(StepContext& context) {
  if (!context.shares_tokens()) return {};
  return [&context](std::span<double> values) {
    const ContextParallel& shared = *context.context_parallel;
    const std::vector<double> all =
        shared.world->all_reduce(*shared.group,
                                 std::vector<double>(values.begin(), values.end()),
                                 comm::Op::Sum,
                                 site(context, "Sinkhorn's sums over tokens"));
    std::copy(all.begin(), all.end(), values.begin());
  };
}

/// True if experts have their capacity in passes of this mode.
bool is_used(ops::CapacityUse use, const StepContext& context) {
  if (context.training() || use == ops::CapacityUse::Always) return true;
  return use == ops::CapacityUse::Evaluation && context.mode() == Mode::Eval;
}

}  // namespace

Routed route(const at::Tensor& h_BTC,
             const ExpertWeights& weights,
             const ops::RouterSpec& spec,
             const ops::CapacitySpec& capacity,
             StepContext& context) {
  TESSERA_REQUIRE(
      tiled_form_of(*weights.router) == nullptr,
      Unsupported,
      fmt::format("{} is in tiles, and routers compute without", weights.router->info().name),
      "name other weights in the section tiling");
  const std::int64_t samples = h_BTC.size(0), E = weights.router->info().shape.front();
  Routed out;
  if (form_of(*weights.router) != nullptr) {
    // A router with an adapter computes as the other layers do.
    out.logits_NE =
        rows(linear(h_BTC, *weights.router, weights.router_bias, context)).to(at::kFloat);
  } else {
    out.logits_NE = detail::apply<LogitsNode>(
        rows(h_BTC),
        weights.router->tensor(),
        weights.router_bias ? std::optional<at::Tensor>(weights.router_bias->tensor())
                            : std::nullopt,
        LogitsNode::Use{weights.router, weights.router_bias, &context});
  }
  const at::Tensor correction =
      weights.correction ? weights.correction->tensor().detach() : at::Tensor();
  ops::RouterSpec used = spec;
  if (!context.training()) used.choice = ops::RouterChoice::Best;
  out.choices =
      ops::choose_experts(out.logits_NE.detach(), correction, used, sum_over_tokens(context));
  const ops::CapacitySpec limit = is_used(capacity.use, context) ? capacity : ops::CapacitySpec();
  out.dropped = ops::drop_choices(out.choices, spec, limit, E, samples);
  const variable_list made = detail::apply<ChooseNode>(
      out.logits_NE,
      ChooseNode::Use{std::make_shared<const ops::Choices>(out.choices), spec, limit});
  out.weights_NK = made[0];
  out.scores_NE = made[1];
  return out;
}

Routed route_nothing(std::int64_t num_experts, std::int64_t top_k) {
  Routed out;
  out.weights_NK = at::empty({0, top_k}, at::kFloat);
  out.scores_NE = out.logits_NE = at::empty({0, num_experts}, at::kFloat);
  const at::Tensor none = at::empty({0, top_k}, at::kInt);
  out.choices = {.chosen_NK = none,
                 .experts_NK = none,
                 .raw_NK = out.weights_NK,
                 .weights_NK = out.weights_NK,
                 .scores_NE = out.scores_NE};
  return out;
}

}  // namespace tessera::nn
