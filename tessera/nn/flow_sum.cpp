// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/tensor_parallel/transfers.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct FlowSumNode : torch::autograd::Function<FlowSumNode> {
  struct Like {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
  };
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, Like{x.sizes().vec(), x.scalar_type()});
    const at::Tensor own = x.sum(at::kDouble);
    if (!flow_form(*context).is_partial(*context)) return own;
    const TensorParallel& tensor = *context->tensor;
    const double all = tensor.world
                           ->all_reduce(*tensor.group,
                                        {x.is_meta() ? 0.0 : own.item<double>()},
                                        comm::Op::Sum,
                                        site(*context, "a term of the loss"))
                           .front();
    return x.is_meta() ? own : at::full({}, all, own.options());
  }
  // Every rank passes on the gradient of its own share.
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Like& like = kept<Like>(node);
    return {grads[0].to(like.dtype).expand(like.sizes), {}};
  }
};

}  // namespace

at::Tensor flow_sum(const at::Tensor& x, StepContext& context) {
  return detail::apply<FlowSumNode>(x, &context);
}

}  // namespace tessera::nn
