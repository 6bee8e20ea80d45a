// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/fake_quantization.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/line_flow_form.h"
#include "tessera/nn/tensor_parallel/loss_gradient.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/nn/vocab_head.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {

namespace {

using namespace detail;

/// ops::linear_cross_entropy() with a weight in tiles: the logits of all rows exist at a time.
ops::CrossEntropyOut tiled_cross_entropy(const at::Tensor& x_NC,
                                         const TiledForm& weight,
                                         const at::Tensor& labels_N,
                                         double label_smoothing,
                                         bool want_grad,
                                         const at::Tensor& bias_V,
                                         double softcap) {
  const at::Tensor logits = weight.product(x_NC, bias_V, at::kFloat),
                   slope = ops::soft_cap_(logits, softcap, want_grad);
  ops::CrossEntropyOut out = ops::cross_entropy_(logits, labels_N, label_smoothing, want_grad);
  if (slope.defined()) out.dlogits_NV.mul_(slope);
  return out;
}

/// The operands of the head, rounded where the weight's form says so.
std::pair<at::Tensor, at::Tensor> operands_of_head(const Param& param,
                                                   const at::Tensor& x_NC,
                                                   const at::Tensor& weight,
                                                   const StepContext& context) {
  const FakeQuantizedForm* const fake = fake_form_of(param, context);
  if (fake == nullptr) return {x_NC, weight};
  return {fake->rounded_input(x_NC), fake->rounded_weight(matrix(weight))};
}

struct VocabLossNode : torch::autograd::Function<VocabLossNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    double softcap = 0.0;
    at::Tensor dlogits = {};  // the largest buffer of a step: freed as soon as backward has used it
  };
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const at::Tensor& labels,
                               double label_smoothing,
                               Use use) {
    const bool want_grad = use.context->training();
    const at::Tensor bias_V = bias ? *bias : at::Tensor();
    const bool cut = one_d::cut_of(use.weight->info()) != one_d::Cut::None;
    const TiledForm* const tiled = tiled_form_of(*use.weight);
    const auto [x_NC, weight_VC] = operands_of_head(*use.weight, rows(x), weight, *use.context);
    at::Tensor kept_logits;
    if (use.context->want_logits) {
      const at::Tensor logits = tiled != nullptr
                                    ? tiled->product(x_NC, bias_V, at::kFloat)
                                    : ops::linear(x_NC, matrix(weight_VC), bias_V, at::kFloat);
      auto sizes = x.sizes().vec();
      sizes.back() = logits.size(1);
      kept_logits = logits.view(sizes);
      ops::soft_cap_(kept_logits, use.softcap, /*want_slope=*/false);
      if (cut) kept_logits = one_d::gather_vocab(kept_logits, *use.weight, *use.context);
    }
    const at::Tensor targets = labels.reshape({-1});
    const auto out =
        cut ? one_d::linear_cross_entropy(x_NC,
                                          *use.weight,
                                          bias_V,
                                          targets,
                                          label_smoothing,
                                          want_grad,
                                          *use.context,
                                          use.softcap)
        : tiled != nullptr
            ? tiled_cross_entropy(
                  x_NC, *tiled, targets, label_smoothing, want_grad, bias_V, use.softcap)
            : ops::linear_cross_entropy(x_NC,
                                        matrix(weight_VC),
                                        targets,
                                        label_smoothing,
                                        want_grad,
                                        bias_V,
                                        use.softcap);
    use.dlogits = out.dlogits_NV;
    save(node, {x, weight});
    keep(node, std::move(use));
    const at::Tensor& sum = out.loss_sum;
    if (!kept_logits.defined()) return {sum};
    if (node != nullptr) node->mark_non_differentiable({kept_logits});
    return {sum, kept_logits};
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    auto& use = kept<Use>(node);
    const auto [x, weight] = operands_of_head(*use.weight, rows(saved[0]), saved[1], *use.context);
    TESSERA_REQUIRE(
        use.dlogits.defined(), Bug, "a second backward through one loss", "run the forward again");
    const auto [dy, factor] =
        loss_gradient(std::exchange(use.dlogits, {}), grads[0], x.scalar_type());
    const TiledForm* const tiled = tiled_form_of(*use.weight);
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = (tiled != nullptr ? tiled->input_grad(dy) : ops::linear_input_grad(dy, matrix(weight)))
               .view(saved[0].sizes());
      if (factor != 1.0F) dx.mul_(factor);
    }
    if (node->needs_input_grad(1) && tiled != nullptr) {
      tiled->weight_grad(dy, x, factor, *use.context);
    } else if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy = dy, x = x, factor = factor, w = use.weight] {
        GradSink& sink = w->grad();
        ops::linear_weight_grad(dy, x, matrix(sink.out()), sink.accumulate(), factor);
        sink.written();
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy = dy, factor = factor, b = use.bias] {
        const at::Tensor db = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
        ops::linear_bias_grad(dy, db, /*accumulate=*/false);
        b->grad().write(factor != 1.0F ? db.mul_(factor) : db);
      });
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context) {
  return vocab_loss(x_BTC, weight_VC, nullptr, labels_BT, label_smoothing, context, 0.0);
}

VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const Param* bias_V,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context,
                     double softcap) {
  return flow_form(context).vocab_loss(
      x_BTC, weight_VC, bias_V, labels_BT, label_smoothing, context, softcap);
}

VocabLoss LineFlowForm::vocab_loss(const at::Tensor& x_BTC,
                                   const Param& weight_VC,
                                   const Param* bias_V,
                                   const at::Tensor& labels_BT,
                                   double label_smoothing,
                                   StepContext& context,
                                   double softcap) const {
  const bool cut = one_d::cut_of(weight_VC.info()) != one_d::Cut::None;
  const variable_list out =
      detail::apply<VocabLossNode>(cut ? one_d::enter(x_BTC, context) : x_BTC,
                                   edge_of(weight_VC),
                                   bias_V ? std::optional(bias_V->tensor()) : std::nullopt,
                                   labels_BT,
                                   label_smoothing,
                                   VocabLossNode::Use{&weight_VC, bias_V, &context, softcap});
  return {out[0], out.size() > 1 ? out[1] : at::Tensor()};
}

}  // namespace tessera::nn
