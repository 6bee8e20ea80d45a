// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/token_share.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/transfers.h"

// Legend: N tokens, C channels.
namespace tessera::nn {
namespace {

using namespace detail;

at::Tensor gathered(const at::Tensor& own_NC, const TokenShare& share, StepContext& context) {
  if (share.tokens == 0) return own_NC;
  const std::int64_t C = own_NC.size(1), n = share.group->size(), most = share.most();
  at::Tensor in = own_NC.contiguous();
  if (in.size(0) < most) in = at::constant_pad_nd(in, {0, 0, 0, most - in.size(0)});
  const at::Tensor out = at::empty({n * most, C}, in.options());
  finish(context.tensor->world->transport().all_gather(
      *share.group, span_of(in), span_of(out), site(context, "the ranks' tokens")));
  return out.narrow(0, 0, share.tokens);
}

struct TakeShareNode : torch::autograd::Function<TakeShareNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& all,
                            const TokenShare& share,
                            StepContext* context) {
    keep(node, std::make_pair(share, context));
    return share.of(all).contiguous();
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto& [share, context] = kept<std::pair<TokenShare, StepContext*>>(node);
    return {gathered(grads[0], share, *context), {}, {}};
  }
};

struct GatherSharesNode : torch::autograd::Function<GatherSharesNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& own,
                            const TokenShare& share,
                            StepContext* context) {
    keep(node, share);
    return gathered(own, share, *context);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {kept<TokenShare>(node).of(grads[0]), {}, {}};
  }
};

}  // namespace

bool divides_tokens(const StepContext& context) {
  return context.tensor != nullptr && context.experts != nullptr &&
         !(context.experts->fold.ep & mesh::AxisSet::tp()).empty();
}

at::Tensor take_share(const at::Tensor& all_NC, const TokenShare& share, StepContext& context) {
  return detail::apply<TakeShareNode>(all_NC, share, &context);
}

at::Tensor gather_shares(const at::Tensor& own_NC, const TokenShare& share, StepContext& context) {
  return detail::apply<GatherSharesNode>(own_NC, share, &context);
}

}  // namespace tessera::nn
