// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/experts.h"

#include <memory>
#include <utility>

#include "tessera/nn/expert_exchange.h"
#include "tessera/nn/expert_products.h"
#include "tessera/ops/clamped_gate.h"
#include "tessera/ops/expert_rows.h"

// Legend: N tokens, C channels, F width of an expert, E experts, K experts that a token uses, R
// rows of this rank's tokens, Q rows for this rank's experts.
namespace tessera::nn {
namespace {

using namespace detail;

at::Tensor activated(const at::Tensor& x, const ExpertForm& form) {
  if (form.clamp > 0.0) return ops::clamped_gate(x, form.clamp);
  return form.gated ? ops::gated(x, form.activation) : ops::activate(x, form.activation);
}

at::Tensor activated_backward(const at::Tensor& dy, const at::Tensor& x, const ExpertForm& form) {
  if (form.clamp > 0.0) return ops::clamped_gate_backward(dy, x, form.clamp);
  return form.gated ? ops::gated_backward(dy, x, form.activation)
                    : ops::activate_backward(dy, x, form.activation);
}

/// The work of one micro-batch: where its rows are, and what the experts do with them.
struct Call {
  ExpertWeights weights;
  ExpertForm form;
  bool weighs_inputs = false;
  StepContext* context = nullptr;
  ExpertLoad* load = nullptr;
  std::vector<std::int64_t> chosen_E;  ///< for `load`
  std::int64_t dropped = 0;
  ops::ExpertRows rows;
  std::shared_ptr<const ExpertExchange> exchange;
};

/// The operands of the gradients of weights.
struct Later {
  std::shared_ptr<const Call> call;
  ExpertOperands input, output;

  void write() const {
    const ExpertWeights& weights = call->weights;
    expert_weight_grads(*weights.input, weights.input_bias, *call->exchange, input);
    expert_weight_grads(*weights.output, weights.output_bias, *call->exchange, output);
  }
};

struct ExpertsNode : torch::autograd::Function<ExpertsNode> {
  struct Kept {
    std::shared_ptr<const Call> call;
    at::Tensor x_QC;
    std::vector<at::Tensor> h;  ///< of each unit, before the activation
  };
  // Parameters are inputs, so that autograd reaches this node through them.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_NC,
                            const at::Tensor& weights_NK,
                            const at::Tensor& /*input*/,
                            const at::Tensor& /*output*/,
                            const std::optional<at::Tensor>& /*input_bias*/,
                            const std::optional<at::Tensor>& /*output_bias*/,
                            const std::optional<at::Tensor>& /*adapter*/,
                            std::shared_ptr<const Call> call) {
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    const at::Tensor none;
    const at::Tensor x_RC =
        ops::rows_of_tokens(x_NC, call->rows, call->weighs_inputs ? weights_NK : none);
    Kept kept = {call, exchange.to_owners(x_RC, "tokens for the experts", context), {}};
    const at::Tensor y_QC = at::empty(kept.x_QC.sizes(), kept.x_QC.options());
    for (const ExpertUnit& unit : exchange.units()) {
      at::Tensor h = expert_product(
          rows_of(kept.x_QC, unit), *call->weights.input, call->weights.input_bias, unit.expert);
      rows_of(y_QC, unit)
          .copy_(expert_product(activated(h, call->form),
                                *call->weights.output,
                                call->weights.output_bias,
                                unit.expert));
      if (node != nullptr) kept.h.push_back(std::move(h));
    }
    const at::Tensor y_RC = exchange.to_sources(y_QC, "results of the experts", context);
    const at::Tensor y_NC =
        ops::sum_of_rows(y_RC, call->rows, call->weighs_inputs ? none : weights_NK);
    save(node, {x_NC, weights_NK, call->weighs_inputs ? none : y_RC});
    keep(node, std::move(kept));
    return y_NC;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x_NC = saved[0], &weights_NK = saved[1], &y_RC = saved[2];
    Kept& kept = detail::kept<Kept>(node);
    const std::shared_ptr<const Call> call = kept.call;
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    if (call->load != nullptr) call->load->add(call->chosen_E, call->dropped);
    const at::Tensor dy_NC = grads[0].to(x_NC.scalar_type()).contiguous(), none;
    const at::Tensor dy_QC = exchange.to_owners(
        ops::rows_of_tokens(dy_NC, call->rows, call->weighs_inputs ? none : weights_NK),
        "gradients for the experts",
        context);
    const at::Tensor dx_QC = experts_backward(kept, dy_QC);
    const at::Tensor dx_RC = exchange.to_sources(dx_QC, "gradients of the tokens", context);
    at::Tensor dweights;
    if (node->needs_input_grad(1)) {
      dweights = call->weighs_inputs ? ops::products_of_rows(x_NC, dx_RC, call->rows)
                                     : ops::products_of_rows(dy_NC, y_RC, call->rows);
      dweights = dweights.to(weights_NK.device());
    }
    at::Tensor dx;
    if (node->needs_input_grad(0))
      dx = ops::sum_of_rows(dx_RC, call->rows, call->weighs_inputs ? weights_NK : none);
    return {dx, dweights, {}, {}, {}, {}, {}, {}};
  }

  /// Returns the gradients of the rows, and writes those of the weights now or later.
  static at::Tensor experts_backward(Kept& kept, const at::Tensor& dy_QC) {
    const std::shared_ptr<const Call> call = kept.call;
    const ExpertWeights& weights = call->weights;
    const at::Tensor dx_QC = at::empty_like(kept.x_QC);
    const at::Tensor x_QC = std::move(kept.x_QC);
    Later later = {call, {}, {}};
    const std::vector<at::Tensor> all_h = std::exchange(kept.h, {});
    auto h = all_h.begin();
    for (const ExpertUnit& unit : call->exchange->units()) {
      const at::Tensor dy = rows_of(dy_QC, unit);
      const at::Tensor da = expert_input_grad(dy, *weights.output, unit.expert);
      at::Tensor dh = activated_backward(da, *h, call->form);
      rows_of(dx_QC, unit).copy_(expert_input_grad(dh, *weights.input, unit.expert));
      later.output.x_QI.push_back(trains_weight(*weights.output) ? activated(*h, call->form)
                                                                 : at::Tensor());
      later.output.dy_QO.push_back(dy);
      later.input.x_QI.push_back(rows_of(x_QC, unit));
      later.input.dy_QO.push_back(std::move(dh));
      ++h;
    }
    weight_gradient(*call->context, [later = std::move(later)] { later.write(); });
    return dx_QC;
  }
};

std::vector<std::int64_t> counts_of(const at::Tensor& chosen_NK, std::int64_t num_experts) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(num_experts), 0);
  const auto* chosen = chosen_NK.const_data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < chosen_NK.numel(); ++i)
    ++out[static_cast<std::size_t>(chosen[i])];
  return out;
}

struct SigmoidGateNode : torch::autograd::Function<SigmoidGateNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& y, const at::Tensor& gate) {
    save(node, {y, gate});
    return ops::sigmoid_gate(y, gate);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    auto [dy, dgate] = ops::sigmoid_gate_backward(grads[0], saved[0], saved[1]);
    return {std::move(dy), std::move(dgate)};
  }
};

std::optional<at::Tensor> value_of(const Param* param) {
  return param == nullptr ? std::nullopt : std::optional<at::Tensor>(param->tensor());
}

}  // namespace

at::Tensor apply_experts(const at::Tensor& h_BTC,
                         const Routed& routed,
                         const ExpertWeights& weights,
                         const ExpertForm& form,
                         bool weighs_inputs,
                         ExpertLoad* load,
                         StepContext& context) {
  const at::Tensor x_NC = rows(h_BTC);
  const at::Tensor& experts_NK = routed.choices.experts_NK;
  const std::int64_t E = weights.input->info().shape.front();
  auto call = std::make_shared<Call>();
  call->weights = weights;
  call->form = form;
  call->weighs_inputs = weighs_inputs;
  call->context = &context;
  const bool meta = x_NC.is_meta();
  call->rows = rows_of_choices(experts_NK, E, x_NC.device());
  call->exchange = std::make_shared<const ExpertExchange>(context, call->rows.counts, meta);
  if (load != nullptr && context.training() && !meta) {
    call->load = load;
    call->chosen_E = counts_of(routed.choices.chosen_NK, E);
    call->dropped = routed.dropped;
  }
  std::optional<at::Tensor> adapter = reach_of(*weights.input);
  if (!adapter) adapter = reach_of(*weights.output);
  const at::Tensor y_NC = detail::apply<ExpertsNode>(x_NC,
                                                     routed.weights_NK,
                                                     weights.input->tensor(),
                                                     weights.output->tensor(),
                                                     value_of(weights.input_bias),
                                                     value_of(weights.output_bias),
                                                     adapter,
                                                     std::shared_ptr<const Call>(std::move(call)));
  return y_NC.view(h_BTC.sizes());
}

at::Tensor sigmoid_gate(const at::Tensor& y_BTC, const at::Tensor& gate_BT1) {
  return detail::apply<SigmoidGateNode>(y_BTC, gate_BT1);
}

}  // namespace tessera::nn
