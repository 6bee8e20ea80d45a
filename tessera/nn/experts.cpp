// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/experts.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/expert_exchange.h"
#include "tessera/ops/clamped_gate.h"
#include "tessera/ops/expert_rows.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"

// Legend: N tokens, C channels, F width of an expert, E experts, K experts that a token uses, R
// rows of this rank's tokens, Q rows for this rank's experts.
namespace tessera::nn {
namespace {

using namespace detail;

/// The matrix [O, I] of one of this rank's experts.
at::Tensor matrix_of(const at::Tensor& stacked, std::int64_t expert) {
  return matrix(stacked.select(0, expert));
}

/// x W^T + b for the matrix and bias of one expert, in x's dtype.
at::Tensor product(const at::Tensor& x_QI,
                   const Param& weight,
                   const Param* bias,
                   std::int64_t expert) {
  const at::Tensor w = matrix_of(weight.tensor().detach(), expert);
  const at::Tensor b =
      bias == nullptr ? at::Tensor() : bias->tensor().detach().select(0, expert).view({-1});
  if (!weight.scales().defined()) return ops::linear(x_QI, w, b);
  return ops::linear_int8(
      x_QI, {w, weight.scales().narrow(0, expert * w.size(0), w.size(0))}, b, std::nullopt);
}

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
  bool has_bias_in = false, has_bias_out = false;
};

/// Rows of one unit.
at::Tensor rows_of(const at::Tensor& rows_QC, const ExpertUnit& unit) {
  return rows_QC.narrow(0, unit.begin, unit.rows);
}

/// Adds or writes a gradient of one expert's matrix for each unit of a source; experts without rows
/// of the source get zeros.
template <class Write>
void write_slices(const Param& param, const ExpertExchange& exchange, const Write& write) {
  GradSink& sink = param.grad();
  const std::int64_t experts = exchange.own().second - exchange.own().first;
  auto unit = exchange.units().begin();
  for (int source = 0; source < exchange.sources(); ++source) {
    if (unit == exchange.units().end() || unit->source != source) continue;
    const at::Tensor& out = sink.out(source);
    const bool adds = sink.accumulate(source);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const bool here =
          unit != exchange.units().end() && unit->source == source && unit->expert == expert;
      if (here) {
        write(*unit++, out.select(0, expert), adds);
      } else if (!adds) {
        out.select(0, expert).zero_();
      }
    }
    sink.written(source);
  }
}

void write_matrices(const Param& param,
                    const ExpertExchange& exchange,
                    const at::Tensor& dy_QO,
                    const at::Tensor& x_QI) {
  write_slices(param, exchange, [&](const ExpertUnit& unit, const at::Tensor& to, bool adds) {
    ops::linear_weight_grad(rows_of(dy_QO, unit), rows_of(x_QI, unit), matrix(to), adds);
  });
}

void write_biases(const Param& param, const ExpertExchange& exchange, const at::Tensor& dy_QO) {
  write_slices(param, exchange, [&](const ExpertUnit& unit, const at::Tensor& to, bool adds) {
    ops::linear_bias_grad(rows_of(dy_QO, unit), to.view({-1}), adds);
  });
}

bool trains(const Param* param) {
  return param != nullptr && param->info().trainable;
}

struct ExpertsNode : torch::autograd::Function<ExpertsNode> {
  // Parameters are inputs, so that autograd reaches this node through them.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_NC,
                            const at::Tensor& weights_NK,
                            const at::Tensor& /*input*/,
                            const at::Tensor& /*output*/,
                            const std::optional<at::Tensor>& /*input_bias*/,
                            const std::optional<at::Tensor>& /*output_bias*/,
                            std::shared_ptr<const Call> call) {
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    const at::Tensor none;
    const at::Tensor x_RC =
        ops::rows_of_tokens(x_NC, call->rows, call->weighs_inputs ? weights_NK : none);
    const at::Tensor x_QC = exchange.to_owners(x_RC, "tokens for the experts", context);
    const at::Tensor y_QC = at::empty(x_QC.sizes(), x_QC.options());
    const std::int64_t O = matrix_rows(*call->weights.input);
    const at::Tensor h_QO =
        node == nullptr ? at::Tensor() : at::empty({x_QC.size(0), O}, x_QC.options());
    for (const ExpertUnit& unit : exchange.units()) {
      const at::Tensor h =
          product(rows_of(x_QC, unit), *call->weights.input, call->weights.input_bias, unit.expert);
      rows_of(y_QC, unit)
          .copy_(product(activated(h, call->form),
                         *call->weights.output,
                         call->weights.output_bias,
                         unit.expert));
      if (node != nullptr) rows_of(h_QO, unit).copy_(h);
    }
    const at::Tensor y_RC = exchange.to_sources(y_QC, "results of the experts", context);
    const at::Tensor y_NC =
        ops::sum_of_rows(y_RC, call->rows, call->weighs_inputs ? none : weights_NK);
    save(node, {x_NC, weights_NK, x_QC, h_QO, call->weighs_inputs ? none : y_RC});
    keep(node, std::move(call));
    return y_NC;
  }

  static std::int64_t matrix_rows(const Param& input) {
    return input.info().numel() / input.info().shape.front() / input.info().shape.back();
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x_NC = saved[0], &weights_NK = saved[1], &x_QC = saved[2], &h_QO = saved[3],
                     &y_RC = saved[4];
    const auto call = kept<std::shared_ptr<const Call>>(node);
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    if (call->load != nullptr) call->load->add(call->chosen_E, call->dropped);
    const at::Tensor dy_NC = grads[0].to(x_NC.scalar_type()).contiguous(), none;
    const at::Tensor dy_QC = exchange.to_owners(
        ops::rows_of_tokens(dy_NC, call->rows, call->weighs_inputs ? none : weights_NK),
        "gradients for the experts",
        context);
    const at::Tensor dx_QC = experts_backward(call, x_QC, h_QO, dy_QC);
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
    return {dx, dweights, {}, {}, {}, {}, {}};
  }

  /// Returns the gradients of the rows, and writes those of the weights now or later.
  static at::Tensor experts_backward(const std::shared_ptr<const Call>& call,
                                     const at::Tensor& x_QC,
                                     const at::Tensor& h_QO,
                                     const at::Tensor& dy_QC) {
    const ExpertWeights& weights = call->weights;
    const at::Tensor dx_QC = at::empty_like(x_QC), dh_QO = at::empty_like(h_QO);
    const std::int64_t F = weights.output->info().shape.back();
    const bool of_output = trains(weights.output);
    const at::Tensor a_QF = of_output ? at::empty({h_QO.size(0), F}, h_QO.options()) : at::Tensor();
    for (const ExpertUnit& unit : call->exchange->units()) {
      const at::Tensor h = rows_of(h_QO, unit);
      const at::Tensor da = ops::linear_input_grad(
          rows_of(dy_QC, unit), matrix_of(weights.output->tensor().detach(), unit.expert));
      const at::Tensor dh = activated_backward(da, h, call->form);
      rows_of(dh_QO, unit).copy_(dh);
      rows_of(dx_QC, unit)
          .copy_(
              ops::linear_input_grad(dh, matrix_of(weights.input->tensor().detach(), unit.expert)));
      if (of_output) rows_of(a_QF, unit).copy_(activated(h, call->form));
    }
    weight_gradient(*call->context, [call, x_QC, dh_QO, a_QF, dy_QC] {
      const ExpertWeights& of = call->weights;
      const ExpertExchange& exchange = *call->exchange;
      if (trains(of.input)) write_matrices(*of.input, exchange, dh_QO, x_QC);
      if (trains(of.input_bias)) write_biases(*of.input_bias, exchange, dh_QO);
      if (trains(of.output)) write_matrices(*of.output, exchange, dy_QC, a_QF);
      if (trains(of.output_bias)) write_biases(*of.output_bias, exchange, dy_QC);
    });
    return dx_QC;
  }
};

/// The rows of N tokens whose choices have no values: as many for each expert.
ops::ExpertRows balanced_rows(std::int64_t N, std::int64_t K, std::int64_t E) {
  const auto meta = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  ops::ExpertRows out;
  for (std::int64_t e = 0; e < E; ++e)
    out.counts.push_back(N * K * (e + 1) / E - N * K * e / E);
  out.token_of_R = out.choice_of_R = at::empty({N * K}, meta);
  out.row_of_NK = at::empty({N, K}, meta);
  return out;
}

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
  TESSERA_REQUIRE(weights.input->extension() == nullptr && weights.output->extension() == nullptr,
                  Unsupported,
                  fmt::format("adapters of the experts {} are not built",
                              weights.input->info().name),
                  "leave them out with adapter.exclude");
  const at::Tensor x_NC = rows(h_BTC);
  const at::Tensor& experts_NK = routed.choices.experts_NK;
  const std::int64_t E = weights.input->info().shape.front(), K = experts_NK.size(1);
  auto call = std::make_shared<Call>();
  call->weights = weights;
  call->form = form;
  call->weighs_inputs = weighs_inputs;
  call->context = &context;
  const bool meta = x_NC.is_meta();
  call->rows = meta ? balanced_rows(x_NC.size(0), K, E)
                    : ops::sort_by_expert(experts_NK, E).on(x_NC.device());
  call->exchange = std::make_shared<const ExpertExchange>(context, call->rows.counts, meta);
  if (load != nullptr && context.training() && !meta) {
    call->load = load;
    call->chosen_E = counts_of(routed.choices.chosen_NK, E);
    call->dropped = routed.dropped;
  }
  const at::Tensor y_NC = detail::apply<ExpertsNode>(x_NC,
                                                     routed.weights_NK,
                                                     weights.input->tensor(),
                                                     weights.output->tensor(),
                                                     value_of(weights.input_bias),
                                                     value_of(weights.output_bias),
                                                     std::shared_ptr<const Call>(std::move(call)));
  return y_NC.view(h_BTC.sizes());
}

at::Tensor sigmoid_gate(const at::Tensor& y_BTC, const at::Tensor& gate_BT1) {
  return detail::apply<SigmoidGateNode>(y_BTC, gate_BT1);
}

}  // namespace tessera::nn
