// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/one_d.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::one_d {
namespace {

using namespace detail;

/// Sums over the ranks; may overwrite x.
at::Tensor all_reduce(const at::Tensor& x, StepContext& context, const char* what) {
  if (x.is_meta()) {
    post_shape_of_sum(x, *context.tensor->world, *context.tensor->group, site(context, what));
    return x;
  }
  const at::Tensor sum = reducible(x);
  finish(context.tensor->world->transport().all_reduce(
      *context.tensor->group, span_of(sum), comm::Op::Sum, site(context, what)));
  return sum.to(x.scalar_type());
}

std::int64_t share_of_tokens(const at::Tensor& x, const StepContext& context) {
  const std::int64_t ranks = context.tensor->group->size();
  TESSERA_REQUIRE(x.dim() >= 2 && x.size(1) % ranks == 0,
                  Shape,
                  fmt::format("{} tokens cannot be shared evenly by {} tensor-parallel ranks",
                              x.dim() >= 2 ? x.size(1) : 0,
                              ranks),
                  fmt::format("choose a sequence length that is a multiple of {}", ranks));
  return x.size(1) / ranks;
}

/// [B, T, C] of every rank -> the sum of this rank's tokens [B, T / ranks, C].
at::Tensor reduce_scatter(const at::Tensor& x_BTC, StepContext& context, const char* what) {
  const std::int64_t B = x_BTC.size(0), share = share_of_tokens(x_BTC, context),
                     ranks = context.tensor->group->size();
  const at::Tensor parts =
      reducible(x_BTC.reshape({B, ranks, share, -1}).transpose(0, 1).contiguous());
  const at::Tensor out = at::empty({B, share, x_BTC.size(-1)}, parts.options());
  finish(context.tensor->world->transport().reduce_scatter(*context.tensor->group,
                                                           span_of(parts),
                                                           span_of(out),
                                                           comm::Op::Sum,
                                                           comm::Write::Store,
                                                           site(context, what)));
  return out.to(x_BTC.scalar_type());
}

/// Every rank's tokens [B, T / ranks, C] -> [B, T, C].
at::Tensor all_gather(const at::Tensor& x_BTC, StepContext& context, const char* what) {
  const at::Tensor own = x_BTC.contiguous();
  const std::int64_t B = own.size(0), C = own.size(-1), ranks = context.tensor->group->size();
  const at::Tensor all = at::empty({ranks, B, own.size(1), C}, own.options());
  finish(context.tensor->world->transport().all_gather(
      *context.tensor->group, span_of(own), span_of(all), site(context, what)));
  return all.transpose(0, 1).reshape({B, -1, C});
}

struct EnterNode : torch::autograd::Function<EnterNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return context->cuts_tokens() ? all_gather(x, *context, "all tokens") : x;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    StepContext& context = *kept<StepContext*>(node);
    return {context.cuts_tokens() ? reduce_scatter(grads[0], context, "gradients of the tokens")
                                  : all_reduce(grads[0], context, "gradients of the input"),
            {}};
  }
};

struct LeaveNode : torch::autograd::Function<LeaveNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return context->cuts_tokens() ? reduce_scatter(x, *context, "sums of the tokens")
                                  : all_reduce(x, *context, "sums of the output");
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    StepContext& context = *kept<StepContext*>(node);
    return {
        context.cuts_tokens() ? all_gather(grads[0], context, "gradients of all tokens") : grads[0],
        {}};
  }
};

struct GatherVocabNode : torch::autograd::Function<GatherVocabNode> {
  struct Use {
    const Param* weight;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, Use use) {
    keep(node, use);
    const ParamInfo& info = use.weight->info();
    const std::int64_t V = info.shape.front(), N = x.numel() / x.size(-1);
    const auto ranks = static_cast<std::int64_t>(use.context->tensor->group->size());
    // All ranks send parts of equal size, because one rank may have one column less than another.
    const std::int64_t room = info.room_numel() / (info.numel() / V);
    at::Tensor own = x.reshape({N, x.size(-1)}).contiguous();
    if (own.size(1) < room) own = at::constant_pad_nd(own, {0, room - own.size(1)});
    const at::Tensor all = at::empty({ranks, N, room}, own.options());
    finish(use.context->tensor->world->transport().all_gather(
        *use.context->tensor->group, span_of(own), span_of(all), site(*use.context, "logits")));
    std::vector<at::Tensor> parts;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const auto [begin, end] =
          mesh::even_cut(V, info.unit, static_cast<int>(ranks), static_cast<int>(r));
      parts.push_back(all[r].narrow(1, 0, end - begin));
    }
    auto sizes = x.sizes().vec();
    sizes.back() = V;
    return at::cat(parts, 1).view(sizes);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const mesh::Box box = kept<Use>(node).weight->info().held();
    return {grads[0].narrow(-1, box.begin.front(), box.end.front() - box.begin.front()), {}};
  }
};

}  // namespace

Cut cut_of(const ParamInfo& weight) {
  if (!weight.cut()) return Cut::None;
  const bool inputs =
      weight.spec.splits.front().dim + 1 == std::ssize(weight.shape) && weight.shape.size() > 1;
  return inputs ? Cut::Inputs : Cut::Outputs;
}

int copies_of(const ParamInfo& weight, const StepContext& context) {
  if (context.tensor == nullptr || context.tensor->on_grid() || !weight.cut()) return 1;
  const auto cuts = [&](mesh::Axis axis) {
    return std::ranges::any_of(weight.spec.splits,
                               [&](const mesh::Split& split) { return split.axes.has(axis); });
  };
  return cuts(mesh::Axis::TpRow) ? 1 : context.tensor->world->mesh().size(mesh::Axis::TpRow);
}

void add_over_copies(const at::Tensor& sum, StepContext& context, const char* what) {
  comm::World& world = *context.tensor->world;
  finish(world.transport().all_reduce(
      world.group({mesh::Axis::TpRow}), span_of(sum), comm::Op::Sum, site(context, what)));
}

at::Tensor enter(const at::Tensor& x_BTC, StepContext& context) {
  TESSERA_ASSERT(context.tensor != nullptr);
  return detail::apply<EnterNode>(x_BTC, &context);
}

at::Tensor leave(const at::Tensor& partial_BTC, StepContext& context) {
  TESSERA_ASSERT(context.tensor != nullptr);
  return detail::apply<LeaveNode>(partial_BTC, &context);
}

at::Tensor own_tokens(const at::Tensor& ids_BT, StepContext& context) {
  const std::int64_t share = share_of_tokens(ids_BT, context);
  return ids_BT.narrow(1, context.tensor->group->index * share, share);
}

at::Tensor gather_vocab(const at::Tensor& x, const Param& weight, StepContext& context) {
  return detail::apply<GatherVocabNode>(x, GatherVocabNode::Use{&weight, &context});
}

at::Tensor all_of(const at::Tensor& mine,
                  const comm::Group& group,
                  const char* what,
                  StepContext& context) {
  auto sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor all = at::empty(sizes, mine.options());
  if (all.numel() == 0) return all;
  finish(context.tensor->world->transport().all_gather(
      group, span_of(mine), span_of(all), site(context, what)));
  return all;
}

}  // namespace tessera::nn::one_d
