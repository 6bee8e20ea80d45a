// SPDX-License-Identifier: Apache-2.0
// The projection to queries, keys and values, and how ranks share it if there are more ranks than
// heads of keys and values. Legend: B batch, T tokens, C channels, G heads of keys and values, K
// channels of a head, O outputs.
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// The projection of one group with some of its queries.
struct SharedGroupNode : torch::autograd::Function<SharedGroupNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    HeadRange queries;
  };

  /// [1, H / G + 2, ...] of a group -> this rank's queries, the keys and the values.
  static at::Tensor own(const at::Tensor& group, const HeadRange& queries) {
    const std::int64_t all = group.size(1) - 2;
    return at::cat({group.narrow(1, queries.first, queries.count), group.narrow(1, all, 2)}, 1);
  }
  /// The inverse of own() for a gradient: 0 for the queries of other ranks, then the sum over the
  /// ranks.
  static at::Tensor sum_of_group(const at::Tensor& mine, const Param& param, const Use& use) {
    const at::Tensor group = at::zeros(param.info().local_shape(), mine.options());
    const std::int64_t all = group.size(1) - 2, queries = use.queries.count;
    group.narrow(1, use.queries.first, queries).copy_(mine.narrow(1, 0, queries));
    group.narrow(1, all, 2).copy_(mine.narrow(1, queries, 2));
    one_d::add_over_copies(group, *use.context, "gradients of shared heads");
    return group;
  }

  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const Use& use) {
    save(node, {x, weight});
    keep(node, use);
    const at::Tensor mine = matrix(own(weight, use.queries)), scales = use.weight->scales(),
                     bias_O = bias ? own(*bias, use.queries).flatten() : at::Tensor();
    at::Tensor y;
    if (scales.defined()) {
      const at::Tensor scales_O = own(scales.view(weight.sizes().slice(0, 3)), use.queries);
      y = ops::linear_int8(rows(x), {mine, scales_O.flatten()}, bias_O);
    } else {
      y = ops::linear(rows(x), mine, bias_O, std::nullopt);
    }
    auto sizes = x.sizes().vec();
    sizes.back() = y.size(1);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const Use& use = kept<Use>(node);
    const at::Tensor dy = rows(grads[0]).to(x.scalar_type());
    at::Tensor dx;
    if (node->needs_input_grad(0))
      dx = ops::linear_input_grad(dy, matrix(own(weight, use.queries))).view(x.sizes());
    const auto wide = x.options().dtype(at::kFloat);
    const std::int64_t heads = use.queries.count + 2, K = weight.size(2);
    if (node->needs_input_grad(1)) {
      const at::Tensor mine = at::empty({1, heads, K, weight.size(3)}, wide);
      ops::linear_weight_grad(dy, rows(x), matrix(mine), /*accumulate=*/false);
      write(sum_of_group(mine, *use.weight, use), *use.weight, use);
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      const at::Tensor mine = at::empty({1, heads, K}, wide);
      ops::linear_bias_grad(dy, mine.view({-1}), /*accumulate=*/false);
      write(sum_of_group(mine, *use.bias, use), *use.bias, use);
    }
    return {dx, {}, {}, {}};
  }

  static void write(const at::Tensor& gradient, const Param& param, const Use& use) {
    weight_gradient(*use.context, [gradient, &param] { param.grad().write(gradient); });
  }
};

/// The queries of the group that this rank computes, if `copies` ranks share the group.
HeadRange own_queries(const ParamInfo& weight, int copies, const StepContext& context) {
  const comm::World& world = *context.tensor->world;
  const int row = world.mesh().coordinate(world.rank(), mesh::Axis::TpRow);
  const auto [begin, end] = mesh::even_cut(weight.shape.at(1) - 2, 1, copies, row);
  return {begin, end - begin};
}

}  // namespace

Qkv project_qkv(const at::Tensor& x_BTC,
                const Param& weight,
                const Param* bias,
                StepContext& context) {
  const int copies = one_d::copies_of(weight.info(), context);
  if (copies == 1) return split_qkv(linear(x_BTC, weight, bias, context), weight);
  TESSERA_REQUIRE(
      form_of(weight) == nullptr,
      Unsupported,
      fmt::format("{} ranks share a head of keys and values of {}, which has an adapter "
                  "or another form",
                  copies,
                  weight.info().name),
      "lower parallel.tensor.size to the number of heads of keys and values");
  const HeadRange queries = own_queries(weight.info(), copies, context);
  const at::Tensor y_BTO = detail::apply<SharedGroupNode>(
      one_d::enter(x_BTC, context),
      weight.tensor(),
      bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
      SharedGroupNode::Use{&weight, bias, &context, queries});
  return split_qkv(y_BTO, weight, queries);
}

}  // namespace tessera::nn
