// SPDX-License-Identifier: Apache-2.0
// A bias that is added after the product, where ranks must sum the product first.
#include <ATen/ATen.h>

#include "tessera/nn/autograd.h"
#include "tessera/nn/line_flow_form.h"
#include "tessera/nn/local_layers.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::detail {
namespace {

struct AddBiasNode : torch::autograd::Function<AddBiasNode> {
  struct Use {
    const Param* bias;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& y,
                            const at::Tensor& bias,
                            Use use) {
    keep(node, use);
    return y + bias.view({-1});
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use use = kept<Use>(node);
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy = grads[0], use] { write(dy, use); });
    }
    return {grads[0], {}, {}};
  }

  static void write(const at::Tensor& dy, const Use& use) {
    flow_form(*use.context).bias_grad(dy, *use.bias, *use.context);
  }
};

}  // namespace

at::Tensor add_bias(const at::Tensor& y, const Param& bias, StepContext& context) {
  return apply<AddBiasNode>(y, bias.tensor(), AddBiasNode::Use{&bias, &context});
}

}  // namespace tessera::nn::detail

namespace tessera::nn {

void LineFlowForm::bias_grad(const at::Tensor& dy,
                             const Param& bias,
                             StepContext& /*context*/) const {
  GradSink& sink = bias.grad();
  ops::linear_bias_grad(detail::rows(dy), sink.out().view({-1}), sink.accumulate());
  sink.written();
}

}  // namespace tessera::nn
