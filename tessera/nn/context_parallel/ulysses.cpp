// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/tensor/span.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// Sends part j of x [P, ...] to rank j; the received parts are in rank order.
at::Tensor all_to_all(const at::Tensor& x, const StepContext& context, const char* what) {
  const at::Tensor out = at::empty(x.sizes(), x.options());
  // On meta a copy would count as memory, and only its shape is posted.
  const at::Tensor in = x.is_meta() ? out : x.contiguous();
  const ContextParallel& with = *context.context_parallel;
  const comm::WorkPtr work = with.world->transport().all_to_all(
      *with.group,
      span_of(in),
      span_of(out),
      TESSERA_HERE(fmt::format("{} of {}", what, context.block_name)));
  work->wait();
  work->wait_reusable();
  return out;
}

at::Tensor to_heads(const at::Tensor& x, const StepContext& context) {
  const std::int64_t N = x.size(0), H = x.size(1), T = x.size(2), K = x.size(3),
                     P = context.context_parallel->group->size();
  TESSERA_REQUIRE(
      H % P == 0,
      Shape,
      fmt::format("{} heads cannot be shared evenly by {} context-parallel ranks", H, P),
      "choose a number of heads that they divide, or parallel.context.mode \"ring\"");
  const at::Tensor parts = x.reshape({N, P, H / P, T, K}).transpose(0, 1);
  return all_to_all(parts, context, "tokens for heads")
      .permute({1, 2, 0, 3, 4})
      .reshape({N, H / P, P * T, K});
}

at::Tensor to_tokens(const at::Tensor& x, const StepContext& context) {
  const std::int64_t N = x.size(0), heads = x.size(1), K = x.size(3),
                     P = context.context_parallel->group->size(), T = x.size(2) / P;
  const at::Tensor parts = x.reshape({N, heads, P, T, K}).permute({2, 0, 1, 3, 4});
  return all_to_all(parts, context, "heads for tokens")
      .transpose(0, 1)
      .reshape({N, P * heads, T, K});
}

struct ToHeadsNode : torch::autograd::Function<ToHeadsNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return to_heads(x, *context);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {to_tokens(grads[0], *kept<StepContext*>(node)), {}};
  }
};

struct ToTokensNode : torch::autograd::Function<ToTokensNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return to_tokens(x, *context);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {to_heads(grads[0], *kept<StepContext*>(node)), {}};
  }
};

/// Here the tokens are the dim before the last.
struct AllKeysNode : torch::autograd::Function<AllKeysNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return all_tokens(x.flatten(0, 1), *context->context_parallel)
        .view({x.size(0), x.size(1), -1, x.size(3)});
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const StepContext& context = *kept<StepContext*>(node);
    const ContextParallel& with = *context.context_parallel;
    const at::Tensor& dx = grads[0];
    const at::Tensor sum = dx.to(at::kFloat).contiguous();
    if (sum.numel() > 0) {
      const comm::WorkPtr work = with.world->transport().all_reduce(
          *with.group,
          span_of(sum),
          comm::Op::Sum,
          TESSERA_HERE(fmt::format("gradients of keys of {}", context.block_name)));
      work->wait();
      work->wait_reusable();
    }
    return {own_tokens(sum.flatten(0, 1), with)
                .view({dx.size(0), dx.size(1), -1, dx.size(3)})
                .to(dx.scalar_type()),
            {}};
  }
};

}  // namespace

at::Tensor keys_of_all_ranks(const at::Tensor& x_NGTK, StepContext& context) {
  return detail::apply<AllKeysNode>(x_NGTK, &context);
}

at::Tensor tokens_to_heads(const at::Tensor& x_NHTK, StepContext& context) {
  return detail::apply<ToHeadsNode>(x_NHTK, &context);
}

at::Tensor heads_to_tokens(const at::Tensor& x_NHTK, StepContext& context) {
  return detail::apply<ToTokensNode>(x_NHTK, &context);
}

}  // namespace tessera::nn
