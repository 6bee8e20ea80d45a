// SPDX-License-Identifier: Apache-2.0
// A product of each choice's row with the matrix of its expert, for experts that are not whole
// MLPs.
#include <memory>
#include <utility>
#include <vector>

#include "tessera/nn/expert_exchange.h"
#include "tessera/nn/expert_parallel.h"
#include "tessera/nn/expert_products.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/token_share.h"
#include "tessera/ops/expert_rows.h"

// Legend: N tokens, K experts that a token uses, E experts, R rows of this rank's choices, Q rows
// for this rank's experts, I inputs, O outputs.
namespace tessera::nn {
namespace {

using namespace detail;

struct Projection {
  const Param* weight = nullptr;
  StepContext* context = nullptr;
  bool shared = false;  ///< all choices of a token have the same row
  ops::ExpertRows rows;
  std::shared_ptr<const ExpertExchange> exchange;
};

/// Rows in the order of the experts, from rows in the order of the choices, and back.
at::Tensor by_expert(const at::Tensor& x_NKI, const ops::ExpertRows& order) {
  // index_select() has no kernel for meta tensors.
  if (x_NKI.is_meta())
    return at::empty({order.choice_of_R.numel(), x_NKI.size(-1)}, x_NKI.options());
  return rows(x_NKI).index_select(0, order.choice_of_R);
}
at::Tensor by_choice(const at::Tensor& y_RO, const ops::ExpertRows& order) {
  const std::int64_t N = order.row_of_NK.size(0), K = order.row_of_NK.size(1);
  if (y_RO.is_meta()) return at::empty({N, K, y_RO.size(1)}, y_RO.options());
  return y_RO.index_select(0, order.row_of_NK.view({-1})).view({N, K, y_RO.size(1)});
}

/// A pass in the rounds of the exchange. An owner keeps the rows of the first round; those of the
/// others are sent again for the backward pass, and once more for gradients of weights that a
/// schedule puts off.
struct ProjectionNode : torch::autograd::Function<ProjectionNode> {
  struct Kept {
    std::shared_ptr<const Projection> call;
    at::Tensor x_QI;   ///< of the first round
    at::Tensor spare;  ///< see ExpertExchange::spare_rows()
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& /*weight*/,
                            const std::optional<at::Tensor>& /*adapter*/,
                            std::shared_ptr<const Projection> call) {
    const ExpertExchange& exchange = *call->exchange;
    const std::int64_t outputs = call->weight->info().local_shape().at(1);
    const at::Tensor x_RI = sorted(x, *call);
    Kept kept = {call, {}, {}};
    at::Tensor y_RO;
    for (std::size_t r = 0; r < exchange.rounds().size(); ++r) {
      const ExpertRound& round = exchange.rounds()[r];
      const at::Tensor x_QI =
          exchange.to_owners(x_RI, round, "tokens for the experts", *call->context);
      const at::Tensor y_QO = at::empty({x_QI.size(0), outputs}, x.options());
      for (const ExpertUnit& unit : round.units)
        rows_of(y_QO, unit)
            .copy_(expert_product(rows_of(x_QI, unit), *call->weight, nullptr, unit.expert));
      if (r == 0) kept.x_QI = x_QI;
      exchange.to_sources(y_QO, round, y_RO, "results of the experts", *call->context);
    }
    if (const std::int64_t rows = exchange.spare_rows(); rows > 0) {
      kept.spare = at::empty({rows, x_RI.size(1)}, x.options());
      (void)at::empty({rows + exchange.rounds().front().rows, x_RI.size(1) + outputs}, x.options());
    }
    at::Tensor y_NKO = by_choice(y_RO, call->rows);
    const bool sends_again = exchange.rounds().size() > 1 || exchange.spare_rows() > 0;
    save(node, {sends_again ? x : at::Tensor()});
    keep(node, std::move(kept));
    return y_NKO;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    Kept& kept = detail::kept<Kept>(node);
    const std::shared_ptr<const Projection> call = kept.call;
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    const at::Tensor x_QI = std::move(kept.x_QI), dy_NKO = grads[0].to(x_QI.scalar_type()),
                     dy_RO = by_expert(dy_NKO, call->rows);
    const auto sums = std::make_shared<ExpertWeightSums>(*call->weight, nullptr, call->exchange);
    at::Tensor dx_RI;
    other_rounds(call, node->get_saved_variables()[0], dy_RO, sums, &dx_RI);
    const ExpertRound& round = exchange.rounds().front();
    const at::Tensor dy_QO = exchange.to_owners(dy_RO, round, "gradients for the experts", context);
    const at::Tensor dx_QI = at::empty_like(x_QI);
    std::vector<at::Tensor> spare = {std::move(kept.spare)};
    at::Tensor spare_dx;
    if (const std::int64_t rows = exchange.spare_rows(); rows > 0) {
      spare.push_back(at::empty({rows, dy_QO.size(1)}, dy_QO.options()));
      spare_dx = at::empty({rows, x_QI.size(1)}, x_QI.options());
    }
    for (const ExpertUnit& unit : round.units)
      rows_of(dx_QI, unit)
          .copy_(expert_input_grad(rows_of(dy_QO, unit), *call->weight, unit.expert));
    weight_gradient(context, [call, sums, x_QI, dy_QO, spare = std::move(spare)] {
      for (const ExpertUnit& unit : call->exchange->rounds().front().units)
        sums->add(unit, rows_of(x_QI, unit), rows_of(dy_QO, unit));
    });
    exchange.to_sources(dx_QI, round, dx_RI, "gradients of the tokens", context);
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = call->shared ? ops::sum_of_rows(dx_RI, call->rows, at::Tensor()).unsqueeze(1)
                        : by_choice(dx_RI, call->rows);
    }
    return {dx, {}, {}, {}};
  }

  /// The rounds after the first one, backwards. `dx_RI`: nullptr in the pass for gradients of
  /// weights that were put off.
  static void other_rounds(const std::shared_ptr<const Projection>& call,
                           const at::Tensor& x,
                           const at::Tensor& dy_RO,
                           const std::shared_ptr<ExpertWeightSums>& sums,
                           at::Tensor* dx_RI) {
    const ExpertExchange& exchange = *call->exchange;
    StepContext& context = *call->context;
    if (const std::int64_t rows = exchange.spare_rows(); rows > 0) {
      const std::int64_t all = rows + exchange.rounds().front().rows,
                         columns = 2 * x.size(-1) + dy_RO.size(1);
      (void)at::empty({all, columns}, dy_RO.options());
      // What a pass that runs later for the gradients of weights would need.
      if (context.deferring())
        context.defer([=] { (void)at::empty({all + dy_RO.size(0), columns}, dy_RO.options()); });
    }
    if (exchange.rounds().size() == 1) return;
    const bool puts_off = context.deferring() && dx_RI != nullptr;
    if (puts_off) context.defer([=] { other_rounds(call, x, dy_RO, sums, nullptr); });
    const at::Tensor x_RI = sorted(x, *call);
    for (std::size_t r = exchange.rounds().size() - 1; r > 0; --r) {
      const ExpertRound& round = exchange.rounds()[r];
      const at::Tensor x_QI = exchange.to_owners(x_RI, round, "tokens for the experts", context);
      const at::Tensor dy_QO =
          exchange.to_owners(dy_RO, round, "gradients for the experts", context);
      const at::Tensor dx_QI = dx_RI == nullptr ? at::Tensor() : at::empty_like(x_QI);
      for (const ExpertUnit& unit : round.units) {
        const at::Tensor dy = rows_of(dy_QO, unit);
        if (dx_RI != nullptr)
          rows_of(dx_QI, unit).copy_(expert_input_grad(dy, *call->weight, unit.expert));
        if (!puts_off) sums->add(unit, rows_of(x_QI, unit), dy);
      }
      if (dx_RI != nullptr)
        exchange.to_sources(dx_QI, round, *dx_RI, "gradients of the tokens", context);
    }
  }

  /// This rank's rows by expert.
  static at::Tensor sorted(const at::Tensor& x, const Projection& call) {
    return call.shared ? ops::rows_of_tokens(x.squeeze(1).contiguous(), call.rows, at::Tensor())
                       : by_expert(x, call.rows);
  }
};

}  // namespace

at::Tensor project_by_expert(const at::Tensor& x,
                             const Routed& routed,
                             const Param& weight,
                             StepContext& context) {
  const std::int64_t N = x.size(0), slots = x.size(1), I = x.size(2),
                     O = weight.info().local_shape().at(1);
  at::Tensor mine = x, chosen_NK = routed.choices.chosen_NK;
  const std::int64_t K = chosen_NK.size(1);
  TokenShare share;
  if (divides_tokens(context)) {
    share = {context.tensor->group, N};
    mine = take_share(x.reshape({N, slots * I}), share, context).view({-1, slots, I});
    chosen_NK = share.of(chosen_NK).contiguous();
  }
  auto call = std::make_shared<Projection>();
  call->weight = &weight;
  call->context = &context;
  call->shared = slots == 1 && K > 1;
  call->rows = rows_of_choices(chosen_NK, weight.info().shape.front(), x.device());
  call->exchange = std::make_shared<const ExpertExchange>(
      context, call->rows.counts, chosen_NK.size(0), x.is_meta());
  const at::Tensor y_NKO = detail::apply<ProjectionNode>(
      mine, weight.tensor(), reach_of(weight), std::shared_ptr<const Projection>(std::move(call)));
  if (share.group == nullptr) return y_NKO;
  return gather_shares(y_NKO.reshape({-1, K * O}), share, context).view({N, K, O});
}

at::Tensor sum_of_choices(const at::Tensor& y_NKC, const Routed& routed) {
  const at::Tensor weights_NK1 = routed.weights_NK.to(y_NKC.device()).unsqueeze(2);
  at::Tensor sum_NC;
  for (std::int64_t k = 0; k < y_NKC.size(1); ++k) {
    const at::Tensor part = y_NKC.select(1, k).to(at::kFloat) * weights_NK1.select(1, k);
    sum_NC = k == 0 ? part : sum_NC + part;
  }
  return sum_NC.to(y_NKC.scalar_type());
}

}  // namespace tessera::nn
