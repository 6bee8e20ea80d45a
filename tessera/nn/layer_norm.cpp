// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/ops/norm.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct LayerNormNode : torch::autograd::Function<LayerNormNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
    double eps;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& bias,
                            Use use) {
    const ops::LayerNormOut out = ops::layer_norm(rows(x), weight, bias, use.eps);
    save(node, {x, weight, out.mean_N, out.rstd_N, bias});
    keep(node, use);
    return out.y_NC.view(x.sizes());
  }

  // The sums over rows come with dx in one pass over memory; deferred they take one of their own.
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& x = saved[0];
    const Use use = kept<Use>(node);
    const bool wants_weight = node->needs_input_grad(1), wants_bias = node->needs_input_grad(2);
    if (use.context->deferring() && (wants_weight || wants_bias)) {
      use.context->defer([=,
                          dy = rows(grads[0]),
                          x = rows(x),
                          mean = saved[2],
                          rstd = saved[3],
                          options = saved[1].options()] {
        // The weight itself counts for dx alone, and may not be there any more.
        sums(dy, x, mean, rstd, at::zeros({x.size(-1)}, options), wants_weight, wants_bias, use);
      });
      const at::Tensor dx = ops::layer_norm_backward(
          rows(grads[0]), rows(x), saved[2], saved[3], saved[1], {}, false, {}, false);
      return {dx.view(x.sizes()), {}, {}, {}};
    }
    const at::Tensor dx =
        sums(rows(grads[0]), rows(x), saved[2], saved[3], saved[1], wants_weight, wants_bias, use);
    return {dx.view(x.sizes()), {}, {}, {}};
  }

  static at::Tensor again(AutogradContext* node) {
    const auto saved = node->get_saved_variables();
    return ops::layer_norm(rows(saved[0]), saved[1], saved[4], kept<Use>(node).eps)
        .y_NC.view(saved[0].sizes());
  }

  static at::Tensor sums(const at::Tensor& dy,
                         const at::Tensor& x,
                         const at::Tensor& mean,
                         const at::Tensor& rstd,
                         const at::Tensor& weight,
                         bool wants_weight,
                         bool wants_bias,
                         const Use& use) {
    GradSink* dw = wants_weight ? &use.weight->grad() : nullptr;
    GradSink* db = wants_bias ? &use.bias->grad() : nullptr;
    const at::Tensor dx = ops::layer_norm_backward(dy,
                                                   x,
                                                   mean,
                                                   rstd,
                                                   weight,
                                                   dw ? dw->out() : at::Tensor(),
                                                   dw && dw->accumulate(),
                                                   db ? db->out() : at::Tensor(),
                                                   db && db->accumulate());
    if (dw) dw->written();
    if (db) db->written();
    return dx;
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param& bias,
                      double eps,
                      StepContext& context) {
  if (context.on_grid()) return grid::layer_norm(x_BTC, weight, bias, eps, context);
  return detail::apply<LayerNormNode>(
      x_BTC, weight.tensor(), bias.tensor(), LayerNormNode::Use{&weight, &bias, &context, eps});
}

detail::Again detail::layer_norm_again(const at::Tensor& x) {
  return again_by<LayerNormNode>(x);
}

}  // namespace tessera::nn
