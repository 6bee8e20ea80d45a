// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/ops/norm.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  struct Use {
    const Param* weight;
    StepContext* context;
    double eps;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            Use use) {
    const ops::RmsNormOut out = ops::rms_norm(rows(x), weight, use.eps);
    save(node, {x, weight, out.rstd_N});
    keep(node, use);
    return out.y_NC.view(x.sizes());
  }

  // The sum over rows comes with dx in one pass over memory; deferred it takes one of its own.
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor x = rows(saved[0]), dy = rows(grads[0]), &weight = saved[1], &rstd = saved[2];
    const Use use = kept<Use>(node);
    const bool wants_weight = node->needs_input_grad(1);
    at::Tensor dx;
    if (wants_weight && !use.context->deferring()) {
      dx = with_sum(dy, x, rstd, weight, use);
    } else {
      dx = ops::rms_norm_backward(dy, x, rstd, weight, {}, false);
    }
    if (wants_weight && use.context->deferring()) {
      use.context->defer([=, rstd = rstd, options = weight.options()] {
        // The weight itself counts for dx alone, and may not be there any more.
        with_sum(dy, x, rstd, at::zeros({x.size(-1)}, options), use);
      });
    }
    return {dx.view(saved[0].sizes()), {}, {}};
  }

  static at::Tensor again(AutogradContext* node) {
    const auto saved = node->get_saved_variables();
    return ops::rms_norm(rows(saved[0]), saved[1], kept<Use>(node).eps).y_NC.view(saved[0].sizes());
  }

  static at::Tensor with_sum(const at::Tensor& dy,
                             const at::Tensor& x,
                             const at::Tensor& rstd,
                             const at::Tensor& weight,
                             const Use& use) {
    GradSink& dw = use.weight->grad();
    const at::Tensor dx = ops::rms_norm_backward(dy, x, rstd, weight, dw.out(), dw.accumulate());
    dw.written();
    return dx;
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_BTC,
                    const Param& weight,
                    double eps,
                    StepContext& context) {
  if (context.on_grid()) return grid::rms_norm(x_BTC, weight, eps, context);
  return detail::apply<RmsNormNode>(
      x_BTC, weight.tensor(), RmsNormNode::Use{&weight, &context, eps});
}

detail::Again detail::rms_norm_again(const at::Tensor& x) {
  return again_by<RmsNormNode>(x);
}

}  // namespace tessera::nn
