// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/token_log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {
namespace {

using namespace detail;

// Legend: N tokens that have a label, R ranks that each have some columns of the vocabulary.

/// Applies `function` to each element. libtorch's own functions give an element other bits
/// depending on its place in the tensor.
template <class Function>
at::Tensor of_each(const at::Tensor& x, Function function) {
  if (x.is_meta()) return at::empty_like(x);
  at::Tensor out = x.to(at::kCPU).contiguous().clone();
  auto* const values = out.data_ptr<double>();
  std::transform(values, values + out.numel(), values, function);
  return out.to(x.device());
}
at::Tensor log_of(const at::Tensor& x) {
  return of_each(x, [](double value) { return std::log(value); });
}
at::Tensor exp_of(const at::Tensor& x) {
  return of_each(x, [](double value) { return std::exp(value); });
}

/// The facts of logits that ranks have columns of, after exp_rows_().
struct Columns {
  at::Tensor largest_RN, sums_RN, labels_RN;  ///< labels: the label's logit, 0 on other ranks
};
struct Whole {
  at::Tensor log_p_N, largest_N, sum_N;
  at::Tensor scale_RN;  ///< e^(a rank's largest logit - the largest one)
};
Whole whole_of(const Columns& of) {
  Whole out;
  out.largest_N = of.largest_RN.amax(0);
  out.scale_RN = exp_of(of.largest_RN - out.largest_N);
  out.sum_N = (of.sums_RN * out.scale_RN).sum(0);
  out.log_p_N = of.labels_RN.sum(0) - out.largest_N - log_of(out.sum_N);
  return out;
}

/// The logits of some tokens, or this rank's columns of them.
class Distributions {
 public:
  Distributions(at::Tensor logits_NV, at::Tensor labels_N, const ParamInfo& weight)
      : logits_(std::move(logits_NV)), labels_(std::move(labels_N)) {
    cut_ = one_d::cut_of(weight) != one_d::Cut::None;
    first_ = cut_ ? weight.held().begin.front() : 0;
  }

  /// The log-probabilities of the labels, fp64 [N], and, if `squares`, log sum p^2. The logits
  /// become e^(logit - largest).
  std::pair<at::Tensor, at::Tensor> measure(bool squares, StepContext& context) {
    const at::Tensor own_N = own();
    const auto fp64 = logits_.options().dtype(at::kDouble);
    // For this rank's columns: the largest logit, the sum of the overwritten logits, the label's
    // logit if this rank has it, and the sum of squares.
    const at::Tensor out_4N = at::zeros({4, logits_.size(0)}, fp64);
    out_4N[2].copy_(at::where(own_N, label_elements(), at::zeros({}, logits_.options())));
    ops::exp_rows_(logits_, out_4N[0], out_4N[1]);
    if (squares) out_4N[3].copy_(logits_.to(at::kDouble).square().sum(1));
    const at::Tensor all_R4N =
        cut_ ? one_d::all_of(out_4N, *context.tensor->group, "log-probabilities", context)
             : out_4N.unsqueeze(0);
    const Whole whole =
        whole_of({all_R4N.select(1, 0), all_R4N.select(1, 1), all_R4N.select(1, 2)});
    factor_ = ((out_4N[0] - whole.largest_N).exp() / whole.sum_N).to(at::kFloat);
    at::Tensor squares_N;
    if (squares) {
      squares_N =
          (all_R4N.select(1, 3) * whole.scale_RN.square()).sum(0).log() - 2 * whole.sum_N.log();
    }
    return {whole.log_p_N, squares_N};
  }

  /// Overwrites the logits with d sum(incoming * log-probabilities) / d logits; call once, after
  /// measure().
  at::Tensor gradient(const at::Tensor& incoming_N) {
    const at::Tensor weights_N = incoming_N.to(at::kFloat);
    logits_.mul_((weights_N * -factor_).unsqueeze(1));
    const at::Tensor own_N = own();
    logits_.scatter_add_(
        1,
        columns().unsqueeze(1),
        at::where(own_N, weights_N, at::zeros({}, weights_N.options())).unsqueeze(1));
    return std::exchange(logits_, {});
  }

 private:
  [[nodiscard]] at::Tensor own() const {
    const at::Tensor column_N = labels_ - first_;
    return column_N.ge(0).logical_and(column_N.lt(logits_.size(1)));
  }
  [[nodiscard]] at::Tensor columns() const {
    return (labels_ - first_).clamp(0, logits_.size(1) - 1);
  }
  [[nodiscard]] at::Tensor label_elements() const {
    return logits_.gather(1, columns().unsqueeze(1)).squeeze(1);
  }

  at::Tensor logits_, labels_;
  bool cut_ = false;
  std::int64_t first_ = 0;
  at::Tensor factor_;  ///< converts e^(logit - largest) to a probability
};

struct LogProbabilitiesNode : torch::autograd::Function<LogProbabilitiesNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    double softcap = 0.0;
    bool squares = false;
    double temperature = 1.0;
    std::optional<Distributions> of = {};
    at::Tensor rows_N = {}, slope_NV = {}, x_NC = {};
  };

  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const at::Tensor& labels,
                               Use use) {
    const bool want_grad = use.context->training();
    const at::Tensor flat = labels.reshape({-1});
    const auto fp64 = x.options().dtype(at::kDouble);
    const at::Tensor out = at::zeros({flat.size(0)}, fp64),
                     squares = use.squares ? at::zeros({flat.size(0)}, fp64) : at::Tensor();
    // Meta tensors have no label values, so every token counts as labelled.
    use.rows_N = x.is_meta() ? at::empty({flat.size(0)}, flat.options())
                             : flat.ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    if (use.rows_N.size(0) > 0) {
      use.x_NC = x.is_meta() ? rows(x) : rows(x).index_select(0, use.rows_N);
      const at::Tensor logits =
          ops::linear(use.x_NC, matrix(weight), bias ? *bias : at::Tensor(), at::kFloat);
      use.slope_NV = ops::soft_cap_(logits, use.softcap, want_grad);
      if (use.temperature != 1.0) logits.div_(use.temperature);
      use.of.emplace(
          logits, x.is_meta() ? use.rows_N : flat.index_select(0, use.rows_N), use.weight->info());
      const auto [values_N, squares_N] = use.of->measure(use.squares, *use.context);
      if (!x.is_meta()) {
        out.index_copy_(0, use.rows_N, values_N);
        if (use.squares) squares.index_copy_(0, use.rows_N, squares_N);
      }
    }
    save(node, {x, weight});
    const bool with_squares = use.squares;
    keep(node, std::move(use));
    if (!with_squares) return {out.view(labels.sizes())};
    const at::Tensor extra = squares.view(labels.sizes());
    if (node != nullptr) node->mark_non_differentiable({extra});
    return {out.view(labels.sizes()), extra};
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& use = kept<Use>(node);
    at::Tensor dx = at::zeros_like(x);
    if (!use.of) return {dx, {}, {}, {}, {}};
    const at::Tensor incoming_N =
        x.is_meta() ? grads[0].reshape({-1}) : grads[0].reshape({-1}).index_select(0, use.rows_N);
    at::Tensor dlogits = use.of->gradient(incoming_N);
    use.of.reset();
    if (use.temperature != 1.0) dlogits.div_(use.temperature);
    if (use.slope_NV.defined()) dlogits.mul_(std::exchange(use.slope_NV, {}));
    const at::Tensor dy = dlogits.to(x.scalar_type()), x_NC = use.x_NC;
    if (node->needs_input_grad(0)) {
      const at::Tensor dx_NC = ops::linear_input_grad(dy, matrix(weight));
      if (x.is_meta()) {
        dx = dx_NC.view(x.sizes());
      } else {
        dx.view({-1, x.size(-1)}).index_copy_(0, use.rows_N, dx_NC.to(x.scalar_type()));
      }
    }
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy, x_NC, w = use.weight] {
        GradSink& sink = w->grad();
        ops::linear_weight_grad(dy, x_NC, matrix(sink.out()), sink.accumulate(), 1.0F);
        sink.written();
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] {
        const at::Tensor db = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
        ops::linear_bias_grad(dy, db, /*accumulate=*/false);
        b->grad().write(db);
      });
    }
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

TokenLogProbabilities token_log_probabilities(const at::Tensor& x_BTC,
                                              const Param& weight_VC,
                                              const Param* bias_V,
                                              const at::Tensor& labels_BT,
                                              StepContext& context,
                                              double softcap,
                                              bool squares,
                                              double temperature) {
  TESSERA_REQUIRE(!context.on_grid(),
                  Unsupported,
                  fmt::format("block {} reads the log-probabilities of single tokens, which ranks "
                              "of a grid do not have",
                              context.block_name),
                  "set parallel.tensor.mode to 1d");
  if (!labels_BT.is_meta())
    ops::count_labels(labels_BT.contiguous().view({-1}), weight_VC.info().shape.front());
  const bool cut = one_d::cut_of(weight_VC.info()) != one_d::Cut::None;
  const variable_list out = detail::apply<LogProbabilitiesNode>(
      cut ? one_d::enter(x_BTC, context) : x_BTC,
      weight_VC.tensor(),
      bias_V != nullptr ? std::optional(bias_V->tensor()) : std::nullopt,
      labels_BT,
      LogProbabilitiesNode::Use{&weight_VC, bias_V, &context, softcap, squares, temperature});
  return {out[0], squares ? out[1] : at::Tensor()};
}

at::Tensor label_log_probabilities_(const at::Tensor& logits_NV,
                                    const at::Tensor& labels_N,
                                    double temperature) {
  if (temperature != 1.0) logits_NV.div_(temperature);
  const at::Tensor out_2N =
      at::zeros({2, logits_NV.size(0)}, logits_NV.options().dtype(at::kDouble));
  const at::Tensor of_labels_N =
      logits_NV.gather(1, labels_N.unsqueeze(1)).squeeze(1).to(at::kDouble);
  ops::exp_rows_(logits_NV, out_2N[0], out_2N[1]);
  return whole_of({out_2N[0].unsqueeze(0), out_2N[1].unsqueeze(0), of_labels_N.unsqueeze(0)})
      .log_p_N;
}

}  // namespace tessera::nn
