// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/ops/norm.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct LayerNormNode : torch::autograd::Function<LayerNormNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& bias,
                            double eps,
                            Use use) {
    const ops::LayerNormOut out = ops::layer_norm(rows(x), weight, bias, eps);
    node->save_for_backward({x, weight, out.mean_N, out.rstd_N});
    keep(node, use);
    return out.y_NC.view(x.sizes());
  }

  // The sums over rows come with dx in one pass over memory, so they are not deferred.
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& x = saved[0];
    const Use use = kept<Use>(node);
    GradSink* dw = node->needs_input_grad(1) ? &use.weight->grad() : nullptr;
    GradSink* db = node->needs_input_grad(2) ? &use.bias->grad() : nullptr;
    const at::Tensor dx = ops::layer_norm_backward(rows(grads[0]),
                                                   rows(x),
                                                   saved[2],
                                                   saved[3],
                                                   saved[1],
                                                   dw ? dw->out() : at::Tensor(),
                                                   dw && dw->accumulate(),
                                                   db ? db->out() : at::Tensor(),
                                                   db && db->accumulate());
    if (dw) dw->written();
    if (db) db->written();
    return {dx.view(x.sizes()), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param& bias,
                      double eps,
                      StepContext& context) {
  return LayerNormNode::apply(
      x_BTC, weight.tensor(), bias.tensor(), eps, LayerNormNode::Use{&weight, &bias, &context});
}

}  // namespace tessera::nn
