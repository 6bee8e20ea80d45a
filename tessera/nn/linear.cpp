// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct LinearNode : torch::autograd::Function<LinearNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
  };
  // Weight and bias are inputs, so that autograd reaches this node through them. Its edges are
  // those of the tensors that are there: the bias has the third, if any.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            std::optional<at::ScalarType> out_dtype,
                            Use use) {
    node->save_for_backward({x, weight});
    keep(node, use);
    const at::Tensor y =
        ops::linear(rows(x), matrix(weight), bias ? bias->view({-1}) : at::Tensor(), out_dtype);
    auto sizes = x.sizes().vec();
    sizes.back() = y.size(1);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor dy = rows(grads[0]).to(x.scalar_type());
    const Use use = kept<Use>(node);
    at::Tensor dx;
    if (node->needs_input_grad(0)) dx = ops::linear_input_grad(dy, matrix(weight)).view(x.sizes());
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context,
                      [dy, x, w = use.weight] { write_weight(dy, rows(x), w->grad()); });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] { write_bias(dy, b->grad()); });
    }
    return {dx, {}, {}, {}, {}};
  }

  static void write_weight(const at::Tensor& dy, const at::Tensor& x, GradSink& sink) {
    ops::linear_weight_grad(dy, x, matrix(sink.out()), sink.accumulate());
    sink.written();
  }
  static void write_bias(const at::Tensor& dy, GradSink& sink) {
    ops::linear_bias_grad(dy, sink.out().view({-1}), sink.accumulate());
    sink.written();
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  StepContext& context) {
  return LinearNode::apply(x,
                           weight.tensor(),
                           bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
                           std::optional<at::ScalarType>(),
                           LinearNode::Use{&weight, bias, &context});
}

at::Tensor vocab_logits(const at::Tensor& x_BTC, const Param& weight_VC, StepContext& context) {
  return LinearNode::apply(x_BTC,
                           weight_VC.tensor(),
                           std::optional<at::Tensor>(),
                           std::optional<at::ScalarType>(at::kFloat),
                           LinearNode::Use{&weight_VC, nullptr, &context});
}

}  // namespace tessera::nn
