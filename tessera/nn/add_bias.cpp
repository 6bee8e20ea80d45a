// SPDX-License-Identifier: Apache-2.0
// A bias that is added after the product, where ranks must sum the product first.
#include <ATen/ATen.h>

#include "tessera/nn/autograd.h"
#include "tessera/nn/local_layers.h"
#include "tessera/nn/tensor_parallel/grid.h"
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
    // A bias that all ranks of a grid hold whole has the gradient of all samples on each of them.
    if (use.context->on_grid() && use.bias->info().cut())
      return grid::bias_grad(grid::by_samples(dy), *use.bias, 1.0F, *use.context);
    GradSink& sink = use.bias->grad();
    ops::linear_bias_grad(rows(dy), sink.out().view({-1}), sink.accumulate());
    sink.written();
  }
};

}  // namespace

at::Tensor add_bias(const at::Tensor& y, const Param& bias, StepContext& context) {
  return apply<AddBiasNode>(y, bias.tensor(), AddBiasNode::Use{&bias, &context});
}

}  // namespace tessera::nn::detail
