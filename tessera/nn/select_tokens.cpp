// SPDX-License-Identifier: Apache-2.0
// Layers for heads that read whole samples: one token of each sample, or the mean of all.
#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/transfers.h"

namespace tessera::nn {
namespace {

using namespace detail;

bool has_some_tokens(const StepContext& context) {
  return context.shares_tokens() || context.cuts_tokens();
}

/// Sums over the ranks that hold the other tokens of the samples.
at::Tensor sum_over_ranks(const at::Tensor& x, const StepContext& context, const char* what) {
  if (x.numel() == 0) return x;
  const at::Tensor sum = x.is_meta() ? x : reducible(x).clone();
  const auto add = [&](comm::World& world, const comm::Group& group) {
    if (x.is_meta()) return post_shape_of_sum(x, world, group, site(context, what));
    finish(world.transport().all_reduce(group, span_of(sum), comm::Op::Sum, site(context, what)));
  };
  if (context.cuts_tokens()) add(*context.tensor->world, *context.tensor->group);
  if (context.shares_tokens())
    add(*context.context_parallel->world, *context.context_parallel->group);
  return sum.to(x.scalar_type());
}

struct SumNode : torch::autograd::Function<SumNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return sum_over_ranks(x, *context, "what a head reads");
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {sum_over_ranks(grads[0], *kept<StepContext*>(node), "gradients of what a head reads"),
            {}};
  }
};

struct SharedGradientNode : torch::autograd::Function<SharedGradientNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, int ranks) {
    keep(node, ranks);
    return x.view(x.sizes());
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {grads[0] / kept<int>(node), {}};
  }
};

struct UncutNode : torch::autograd::Function<UncutNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    const at::Tensor all =
        one_d::all_of(x.contiguous(), *context->tensor->group, "all tokens", *context);
    return all.transpose(0, 1).flatten(1, 2);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {one_d::own_tokens(grads[0], *kept<StepContext*>(node)).contiguous(), {}};
  }
};

struct ValuesOfSamplesNode : torch::autograd::Function<ValuesOfSamplesNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, StepContext* context) {
    keep(node, context);
    return all_tokens(x, *context->context_parallel);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const ContextParallel& with = *kept<StepContext*>(node)->context_parallel;
    // Every rank has the same gradient, of its own terms.
    return {own_tokens(grads[0], with) * with.group->size(), {}};
  }
};

/// The positions of this rank's tokens in their samples: [T].
at::Tensor places_of(std::int64_t tokens, const StepContext& context, const at::Tensor& like) {
  const std::vector<std::int64_t> parts = parts_of_sample(context);
  const auto options = like.options().dtype(at::kLong);
  if (parts.empty()) return at::arange(tokens, options);
  const std::int64_t each = tokens / std::ssize(parts);
  std::vector<at::Tensor> places;
  for (const std::int64_t part : parts)
    places.push_back(at::arange(part * each, (part + 1) * each, options));
  return at::cat(places);
}

at::Tensor select_of_ranks(const at::Tensor& x_BTC,
                           const at::Tensor& positions_B,
                           StepContext& context) {
  const at::Tensor places_T = places_of(x_BTC.size(1), context, positions_B);
  const at::Tensor here_BT = places_T.unsqueeze(0).eq(positions_B.unsqueeze(1));
  const at::Tensor index_B11 = here_BT.to(at::kByte).argmax(1).view({-1, 1, 1});
  const at::Tensor elsewhere_B11 = here_BT.any(1).logical_not().view({-1, 1, 1});
  const at::Tensor own_B1C =
      x_BTC.gather(1, index_B11.expand({-1, 1, x_BTC.size(2)})).masked_fill(elsewhere_B11, 0);
  return detail::apply<SumNode>(own_B1C, &context);
}

}  // namespace

at::Tensor select_tokens(const at::Tensor& x_BTC,
                         const at::Tensor& positions_B,
                         StepContext& context) {
  at::Tensor own_B = positions_B;
  if (positions_B.dim() == 1) {
    const OwnSamples samples =
        flow_form(context).own_samples(positions_B.size(0), FlowPlace::Between, context);
    own_B = positions_B.narrow(0, samples.begin, samples.count);
  }
  TESSERA_REQUIRE(own_B.dim() == 1 && x_BTC.dim() == 3 && own_B.size(0) == x_BTC.size(0),
                  Shape,
                  fmt::format("block {}: positions of {} samples, hidden states of {}",
                              context.block_name,
                              own_B.numel(),
                              x_BTC.size(0)),
                  "give the position of one token for each sample");
  if (has_some_tokens(context)) return select_of_ranks(x_BTC, own_B, context);
  return x_BTC.gather(1, own_B.view({-1, 1, 1}).expand({-1, 1, x_BTC.size(2)}));
}

at::Tensor mean_of_tokens(const at::Tensor& x_BTC,
                          const at::Tensor& mask_BS,
                          StepContext& context) {
  const bool some = has_some_tokens(context);
  if (!mask_BS.defined() && !some) return x_BTC.mean(1);
  std::int64_t parts = 1;
  if (context.shares_tokens()) parts *= context.context_parallel->group->size();
  if (context.cuts_tokens()) parts *= context.tensor->group->size();
  const at::Tensor counts_BS =
      mask_BS.defined() ? mask_BS.ne(0).to(x_BTC.scalar_type())
                        : at::ones({x_BTC.size(0), x_BTC.size(1) * parts}, x_BTC.options());
  const at::Tensor all_B1 = counts_BS.unsqueeze(-1).sum(1);
  if (!some) return (x_BTC * counts_BS.unsqueeze(-1)).sum(1) / all_B1;
  const at::Tensor own_BT1 =
      counts_BS.index_select(1, places_of(x_BTC.size(1), context, counts_BS)).unsqueeze(-1);
  return detail::apply<SumNode>((x_BTC * own_BT1).sum(1), &context) / all_B1;
}

at::Tensor shared_gradient(const at::Tensor& x, StepContext& context) {
  if (!context.cuts_tokens()) return x;
  return detail::apply<SharedGradientNode>(x, context.tensor->group->size());
}

at::Tensor uncut_tokens(const at::Tensor& x_BTC, StepContext& context) {
  return context.cuts_tokens() ? detail::apply<UncutNode>(x_BTC, &context) : x_BTC;
}

at::Tensor values_of_samples(const at::Tensor& x_BT, StepContext& context) {
  return context.shares_tokens() ? detail::apply<ValuesOfSamplesNode>(x_BT, &context) : x_BT;
}

at::Tensor gather_flow(const at::Tensor& x, StepContext& context) {
  return flow_form(context).gather(x, context);
}

at::Tensor take_flow(const at::Tensor& x, StepContext& context) {
  return flow_form(context).take(x, context);
}

void refuse_grid(const Block& block, const StepContext& context) {
  if (!context.splits_samples()) return;
  const std::string obstacle = block.grid_obstacle();
  TESSERA_REQUIRE(
      obstacle.empty(),
      Unsupported,
      fmt::format("a grid of ranks does not cut {}, of block {}", obstacle, context.block_name),
      "set parallel.tensor.mode to 1d");
}

}  // namespace tessera::nn
