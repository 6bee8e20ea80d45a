// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/experts.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/expert_exchange.h"
#include "tessera/nn/expert_products.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/token_share.h"
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
  bool adds_output_bias = true;  ///< of the ranks that split an expert, the first one adds it
  StepContext* context = nullptr;
  ExpertLoad* load = nullptr;
  std::vector<std::int64_t> chosen_E;  ///< for `load`
  std::int64_t dropped = 0;
  ops::ExpertRows rows;
  std::shared_ptr<const ExpertExchange> exchange;

  /// The input of an expert's activation.
  [[nodiscard]] at::Tensor hidden(const at::Tensor& x, std::int64_t expert) const {
    return expert_product(x, *weights.input, weights.input_bias, expert);
  }
  [[nodiscard]] at::Tensor output(const at::Tensor& h, std::int64_t expert) const {
    return expert_product(activated(h, form), *weights.output, output_bias(), expert);
  }
  /// The results of all units at once; undefined if each is computed by itself.
  [[nodiscard]] at::Tensor outputs(const at::Tensor& x_QC,
                                   const std::vector<ExpertUnit>& units) const {
    const at::Tensor h = expert_products(x_QC, *weights.input, weights.input_bias, units);
    if (!h.defined()) return h;
    return expert_products(activated(h, form), *weights.output, output_bias(), units);
  }
  [[nodiscard]] const Param* output_bias() const {
    return adds_output_bias ? weights.output_bias : nullptr;
  }
};

/// The gradients of the weights of the experts.
struct WeightSums {
  explicit WeightSums(const Call& call)
      : input(*call.weights.input, call.weights.input_bias, call.exchange),
        output(*call.weights.output, call.weights.output_bias, call.exchange) {}
  /// `dh`: the gradient of the input of the activation; `a`: its result, if the output weights are
  /// trained.
  void add(const ExpertUnit& unit,
           const at::Tensor& x,
           const at::Tensor& dh,
           const at::Tensor& a,
           const at::Tensor& dy) {
    input.add(unit, x, dh);
    output.add(unit, a, dy);
  }
  ExpertWeightSums input, output;
};

/// The operands of the gradients of weights in the first round; those of each unit in lists.
struct Later {
  std::shared_ptr<const Call> call;
  std::shared_ptr<WeightSums> sums;
  at::Tensor x_QC, dy_QC;
  std::vector<at::Tensor> dh, a;
  std::vector<at::Tensor> spare;

  void write() const {
    const std::vector<ExpertUnit>& units = call->exchange->rounds().front().units;
    for (std::size_t u = 0; u < units.size(); ++u)
      sums->add(units[u],
                rows_of(x_QC, units[u]),
                dh[u],
                a.empty() ? at::Tensor() : a[u],
                rows_of(dy_QC, units[u]));
  }
};

/// On meta tensors, memory for `rows` rows of each width; see ExpertExchange::spare_rows().
std::vector<at::Tensor> spare(std::int64_t rows,
                              std::initializer_list<std::int64_t> widths,
                              const at::Tensor& like) {
  std::vector<at::Tensor> out;
  if (rows == 0) return out;
  for (const std::int64_t width : widths)
    out.push_back(at::empty({rows, width}, like.options()));
  return out;
}

/// Columns before the activation, and after it.
std::pair<std::int64_t, std::int64_t> widths_of(const Call& call) {
  const Shape shape = call.weights.input->info().local_shape();
  const std::int64_t F = shape[shape.size() - 2];
  return {call.form.gated ? 2 * F : F, F};
}

/// The experts' part of a forward and a backward pass. An owner keeps the rows of the first round,
/// and of the others nothing: their sources send the tokens again for the backward pass, and the
/// owner computes them again. So what an owner holds has a bound, whatever the tokens choose.
struct ExpertsNode : torch::autograd::Function<ExpertsNode> {
  struct Kept {
    std::shared_ptr<const Call> call;
    at::Tensor x_QC;            ///< of the first round
    std::vector<at::Tensor> h;  ///< of each of its units, before the activation
    std::vector<at::Tensor> spare;
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
    Kept kept = {call, {}, {}, {}};
    at::Tensor y_RC;
    for (std::size_t r = 0; r < exchange.rounds().size(); ++r) {
      const ExpertRound& round = exchange.rounds()[r];
      const bool keeps = r == 0 && node != nullptr;
      const at::Tensor x_QC = exchange.to_owners(x_RC, round, "tokens for the experts", context);
      at::Tensor y_QC = node == nullptr ? call->outputs(x_QC, round.units) : none;
      if (!y_QC.defined()) {
        y_QC = at::empty(x_QC.sizes(), x_QC.options());
        for (const ExpertUnit& unit : round.units) {
          at::Tensor h = call->hidden(rows_of(x_QC, unit), unit.expert);
          rows_of(y_QC, unit).copy_(call->output(h, unit.expert));
          if (keeps) kept.h.push_back(std::move(h));
        }
      }
      if (keeps) kept.x_QC = x_QC;
      exchange.to_sources(y_QC, round, y_RC, "results of the experts", context);
    }
    if (const std::int64_t rows = exchange.spare_rows(); rows > 0) {
      const std::int64_t C = x_NC.size(1), all = rows + exchange.rounds().front().rows;
      const auto [before, after] = widths_of(*call);
      if (node != nullptr) kept.spare = spare(rows, {C, before}, x_NC);
      (void)spare(all, {C, C}, x_NC);  // a round that is not kept
    }
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
    if (call->load != nullptr) call->load->add(call->chosen_E, call->dropped);
    const at::Tensor dy_NC = grads[0].to(x_NC.scalar_type()).contiguous(), none;
    const at::Tensor dy_RC =
        ops::rows_of_tokens(dy_NC, call->rows, call->weighs_inputs ? none : weights_NK);
    const auto sums = std::make_shared<WeightSums>(*call);
    at::Tensor dx_RC;
    other_rounds(call, x_NC, weights_NK, dy_RC, sums, &dx_RC);
    first_round(kept, dy_RC, sums, dx_RC);
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

  /// Adds the gradients of the rows of the first round to `dx_RC`, and writes those of the weights
  /// now or later.
  static void first_round(Kept& kept,
                          const at::Tensor& dy_RC,
                          const std::shared_ptr<WeightSums>& sums,
                          at::Tensor& dx_RC) {
    const std::shared_ptr<const Call> call = kept.call;
    const ExpertExchange& exchange = *call->exchange;
    const ExpertRound& round = exchange.rounds().front();
    const ExpertWeights& weights = call->weights;
    StepContext& context = *call->context;
    const at::Tensor dy_QC = exchange.to_owners(dy_RC, round, "gradients for the experts", context);
    const at::Tensor dx_QC = at::empty_like(kept.x_QC);
    const auto [before, after] = widths_of(*call);
    Later later = {call, sums, std::move(kept.x_QC), dy_QC, {}, {}, {}};
    const std::int64_t C = dy_QC.size(1);
    const auto spare_dx = spare(exchange.spare_rows(), {C}, dy_QC);
    later.spare = spare(exchange.spare_rows(), {C, before, after}, dy_QC);
    const std::vector<at::Tensor> all_h = std::exchange(kept.h, {});
    auto h = all_h.begin();
    for (const ExpertUnit& unit : round.units) {
      at::Tensor dh = input_gradient(*call, rows_of(dy_QC, unit), *h, unit.expert);
      rows_of(dx_QC, unit).copy_(expert_input_grad(dh, *weights.input, unit.expert));
      if (trains_weight(*weights.output)) later.a.push_back(activated(*h, call->form));
      later.dh.push_back(std::move(dh));
      ++h;
    }
    kept.spare.clear();
    weight_gradient(context, [later = std::move(later)] { later.write(); });
    exchange.to_sources(dx_QC, round, dx_RC, "gradients of the tokens", context);
  }

  /// The gradient of the input of the activation.
  static at::Tensor input_gradient(const Call& call,
                                   const at::Tensor& dy,
                                   const at::Tensor& h,
                                   std::int64_t expert) {
    return activated_backward(expert_input_grad(dy, *call.weights.output, expert), h, call.form);
  }

  /// The rounds after the first one, backwards. Schedules that put off the gradients of weights run
  /// them once more for these instead of keeping their operands.
  static void other_rounds(const std::shared_ptr<const Call>& call,
                           const at::Tensor& x_NC,
                           const at::Tensor& weights_NK,
                           const at::Tensor& dy_RC,
                           const std::shared_ptr<WeightSums>& sums,
                           at::Tensor* dx_RC) {
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    if (const std::int64_t rows = exchange.spare_rows(); rows > 0) {
      const std::int64_t C = x_NC.size(1), all = rows + exchange.rounds().front().rows;
      (void)spare(all, {C, C, C}, x_NC);
      // What a pass that runs later for the gradients of weights would need.
      if (context.deferring())
        context.defer([=] { (void)spare(all + dy_RC.size(0), {x_NC.size(1), C}, dy_RC); });
    }
    if (exchange.rounds().size() == 1) return;
    const bool puts_off = context.deferring() && dx_RC != nullptr;
    if (puts_off) {
      context.defer([=] { other_rounds(call, x_NC, weights_NK, dy_RC, sums, nullptr); });
    }
    const at::Tensor x_RC =
        ops::rows_of_tokens(x_NC, call->rows, call->weighs_inputs ? weights_NK : at::Tensor());
    for (std::size_t r = exchange.rounds().size() - 1; r > 0; --r) {
      const ExpertRound& round = exchange.rounds()[r];
      const at::Tensor x_QC = exchange.to_owners(x_RC, round, "tokens for the experts", context);
      const at::Tensor dy_QC =
          exchange.to_owners(dy_RC, round, "gradients for the experts", context);
      const at::Tensor dx_QC = dx_RC == nullptr ? at::Tensor() : at::empty_like(x_QC);
      for (const ExpertUnit& unit : round.units) {
        const at::Tensor x = rows_of(x_QC, unit), dy = rows_of(dy_QC, unit),
                         h = call->hidden(x, unit.expert),
                         dh = input_gradient(*call, dy, h, unit.expert);
        if (dx_RC != nullptr)
          rows_of(dx_QC, unit).copy_(expert_input_grad(dh, *call->weights.input, unit.expert));
        if (puts_off) continue;
        const at::Tensor a =
            trains_weight(*call->weights.output) ? activated(h, call->form) : at::Tensor();
        sums->add(unit, x, dh, a, dy);
      }
      if (dx_RC != nullptr)
        exchange.to_sources(dx_QC, round, *dx_RC, "gradients of the tokens", context);
    }
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
  const mesh::ExpertFold fold =
      context.experts == nullptr ? mesh::ExpertFold() : context.experts->fold;
  const bool splits_experts = context.tensor != nullptr && !fold.etp.empty(),
             shares_tokens = divides_tokens(context);
  std::optional<at::Tensor> adapter = reach_of(*weights.input);
  if (!adapter) adapter = reach_of(*weights.output);
  TESSERA_REQUIRE(
      !adapter || !splits_experts,
      Unsupported,
      fmt::format("adapters of experts that are split over ranks ({})", weights.input->info().name),
      "leave parallel.expert_tensor out, or these layers with adapter.exclude");
  at::Tensor x_NC = rows(h_BTC), weights_NK = routed.weights_NK;
  at::Tensor experts_NK = routed.choices.experts_NK;
  TokenShare share;
  if (splits_experts) {
    x_NC = one_d::enter(x_NC, context);
    weights_NK = one_d::enter(weights_NK, context);
  } else if (shares_tokens) {
    share = {context.tensor->group, x_NC.size(0)};
    x_NC = take_share(x_NC, share, context);
    weights_NK = take_share(weights_NK, share, context);
    experts_NK = share.of(experts_NK);
  }
  const std::int64_t E = weights.input->info().shape.front();
  auto call = std::make_shared<Call>();
  call->weights = weights;
  call->form = form;
  call->weighs_inputs = weighs_inputs;
  call->adds_output_bias = !splits_experts || context.tensor->group->index == 0;
  call->context = &context;
  const bool meta = x_NC.is_meta();
  call->rows = rows_of_choices(experts_NK.contiguous(), E, x_NC.device());
  call->exchange =
      std::make_shared<const ExpertExchange>(context, call->rows.counts, x_NC.size(0), meta);
  if (load != nullptr && context.training() && !meta) {
    call->load = load;
    call->chosen_E = counts_of(routed.choices.chosen_NK, E);
    call->dropped = routed.dropped;
  }
  at::Tensor y_NC = detail::apply<ExpertsNode>(x_NC,
                                               weights_NK,
                                               weights.input->tensor(),
                                               weights.output->tensor(),
                                               value_of(weights.input_bias),
                                               value_of(weights.output_bias),
                                               adapter,
                                               std::shared_ptr<const Call>(std::move(call)));
  if (splits_experts) y_NC = one_d::leave(y_NC, context);
  if (shares_tokens) y_NC = gather_shares(y_NC, share, context);
  return y_NC.view(h_BTC.sizes());
}

at::Tensor sigmoid_gate(const at::Tensor& y_BTC, const at::Tensor& gate_BT1) {
  return detail::apply<SigmoidGateNode>(y_BTC, gate_BT1);
}

}  // namespace tessera::nn
