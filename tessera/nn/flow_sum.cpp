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
    const comm::CallSite where = site(*context, "a term of the loss");
    if (x.is_meta()) {
      post_shape_of_sum(own, *tensor.world, *tensor.group, where);
      return own;
    }
    const at::Tensor all = own.reshape({1});  // the host need not know it
    finish(tensor.world->transport().all_reduce(*tensor.group, span_of(all), comm::Op::Sum, where));
    return all.reshape({});
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
