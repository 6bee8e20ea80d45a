// SPDX-License-Identifier: Apache-2.0
// Layers without parameters, except attention: activations, gates, rotations, dropout, and the two
// reshapes around attention.
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/transport.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct ActivateNode : torch::autograd::Function<ActivateNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            ops::Activation activation) {
    save(node, {x});
    keep(node, activation);
    return ops::activate(x, activation);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const at::Tensor x = node->get_saved_variables()[0];
    return {ops::activate_backward(grads[0].contiguous(), x, kept<ops::Activation>(node)), {}};
  }
  static at::Tensor again(AutogradContext* node) {
    return ops::activate(node->get_saved_variables()[0], kept<ops::Activation>(node));
  }
};

struct GatedNode : torch::autograd::Function<GatedNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            ops::Activation activation) {
    save(node, {x});
    keep(node, activation);
    return ops::gated(x, activation);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const at::Tensor x = node->get_saved_variables()[0];
    return {ops::gated_backward(grads[0].contiguous(), x, kept<ops::Activation>(node)), {}};
  }
  static at::Tensor again(AutogradContext* node) {
    return ops::gated(node->get_saved_variables()[0], kept<ops::Activation>(node));
  }
};

struct RotaryNode : torch::autograd::Function<RotaryNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_BHTK,
                            const ops::RotaryTable& table) {
    keep(node, table);
    return ops::rotary(x_BHTK, table);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {ops::rotary_backward(grads[0], kept<ops::RotaryTable>(node)), {}};
  }
};

struct DropoutNode : torch::autograd::Function<DropoutNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const ops::DropoutKey& key) {
    keep(node, key);
    return ops::dropout(x, key);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {ops::dropout(grads[0].contiguous(), kept<ops::DropoutKey>(node)), {}};
  }
};

struct AddDropoutNode : torch::autograd::Function<AddDropoutNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& branch,
                            const ops::DropoutKey& key) {
    keep(node, key);
    return ops::add_dropout(x, branch, key);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {grads[0], ops::dropout(grads[0].contiguous(), kept<ops::DropoutKey>(node)), {}};
  }
};

struct SplitHeadsNode : torch::autograd::Function<SplitHeadsNode> {
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x_BTO,
                               std::int64_t parts,
                               std::int64_t num_heads) {
    keep(node, x_BTO.sizes().vec());
    const at::Tensor heads = x_BTO.reshape(
        {x_BTO.size(0), x_BTO.size(1), parts, num_heads, x_BTO.size(2) / (parts * num_heads)});
    variable_list out;
    for (std::int64_t part = 0; part < parts; ++part)
      out.push_back(heads.select(2, part).transpose(1, 2));
    return out;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads_BHTK) {
    const auto parts = static_cast<std::int64_t>(grads_BHTK.size());
    const at::Tensor& first = grads_BHTK[0];
    const auto sizes = kept<std::vector<std::int64_t>>(node);
    if (const at::Tensor whole = joined(grads_BHTK); whole.defined()) {
      return {whole.view(sizes), {}, {}};
    }
    const at::Tensor dx = at::empty(
        {first.size(0), first.size(2), parts, first.size(1), first.size(3)}, first.options());
    for (std::int64_t part = 0; part < parts; ++part) {
      dx.select(2, part).copy_(grads_BHTK[static_cast<std::size_t>(part)].transpose(1, 2));
    }
    return {dx.view(sizes), {}, {}};
  }

  /// The memory [B, T, parts, H, K] if the gradients already share it in the layout of this node's
  /// outputs, as those of attention do; else undefined.
  static at::Tensor joined(const variable_list& grads_BHTK) {
    const at::Tensor& first = grads_BHTK[0];
    if (!first.defined()) return {};
    const auto parts = static_cast<std::int64_t>(grads_BHTK.size());
    const std::int64_t T = first.size(2), H = first.size(1), K = first.size(3);
    const std::vector<std::int64_t> strides = {T * parts * H * K, K, parts * H * K, 1};
    for (std::int64_t part = 0; part < parts; ++part) {
      const at::Tensor& grad = grads_BHTK[static_cast<std::size_t>(part)];
      if (!grad.defined() || !grad.is_alias_of(first) || grad.sizes() != first.sizes() ||
          grad.strides() != at::IntArrayRef(strides) ||
          grad.storage_offset() != first.storage_offset() + part * H * K) {
        return {};
      }
    }
    return first.as_strided({first.size(0), T, parts, H, K},
                            {T * parts * H * K, parts * H * K, H * K, K, 1});
  }
};

/// x [B, T, G * (group + 2) * K] -> q [B, G * group, T, K] (a copy), k and v [B, G, T, K] (views).
struct SplitGroupsNode : torch::autograd::Function<SplitGroupsNode> {
  struct Groups {
    std::int64_t count = 0, queries = 0;
  };
  static at::Tensor by_groups(const at::Tensor& x_BTO, const Groups& groups) {
    const std::int64_t rows = groups.count * (groups.queries + 2);
    return x_BTO.view({x_BTO.size(0),
                       x_BTO.size(1),
                       groups.count,
                       groups.queries + 2,
                       rows == 0 ? 0 : x_BTO.size(2) / rows});
  }
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x_BTO,
                               const Groups& groups) {
    keep(node, groups);
    const at::Tensor x = by_groups(x_BTO.contiguous(), groups);
    return {x.narrow(3, 0, groups.queries).flatten(2, 3).transpose(1, 2),
            x.select(3, groups.queries).transpose(1, 2),
            x.select(3, groups.queries + 1).transpose(1, 2)};
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads_BHTK) {
    const auto groups = kept<Groups>(node);
    const at::Tensor& dq = grads_BHTK[0];
    const std::int64_t channels = groups.count * (groups.queries + 2) * dq.size(3);
    const at::Tensor dx_BTO = at::empty({dq.size(0), dq.size(2), channels}, dq.options());
    const at::Tensor dx = by_groups(dx_BTO, groups);
    dx.narrow(3, 0, groups.queries)
        .copy_(dq.transpose(1, 2).unflatten(2, {groups.count, groups.queries}));
    dx.select(3, groups.queries).copy_(grads_BHTK[1].transpose(1, 2));
    dx.select(3, groups.queries + 1).copy_(grads_BHTK[2].transpose(1, 2));
    return {dx_BTO, {}};
  }
};

}  // namespace

detail::Again detail::activation_again(const at::Tensor& x) {
  Again again = again_by<ActivateNode>(x);
  return again ? again : again_by<GatedNode>(x);
}

at::Tensor activate(const at::Tensor& x, ops::Activation activation) {
  return detail::apply<ActivateNode>(x, activation);
}

at::Tensor gated(const at::Tensor& x, ops::Activation activation) {
  return detail::apply<GatedNode>(x, activation);
}

at::Tensor rotary(const at::Tensor& x_BHTK, const ops::RotaryTable& table) {
  return detail::apply<RotaryNode>(x_BHTK, table);
}

at::Tensor dropout(const at::Tensor& x, const ops::DropoutKey& key) {
  return key.active() ? detail::apply<DropoutNode>(x, key) : x;
}

at::Tensor dropout_features(const at::Tensor& x,
                            const Param& weight,
                            ops::DropoutKey key,
                            const StepContext& context) {
  if (!key.active()) return x;
  // Ranks that split the tokens between layers hold all of them inside.
  key.parts = own_chunks(context);
  const ParamInfo& info = weight.info();
  const std::int64_t all = info.numel() / info.shape.back(),
                     own = info.local_numel() / info.local_shape().back();
  const comm::Group* const sharers = info.cut() ? &grid::ranks_inside(context) : nullptr;
  TESSERA_REQUIRE(
      all % own == 0 && (sharers == nullptr || all % sharers->size() == 0),
      Unsupported,
      fmt::format("dropout of the features of {}, of which ranks hold unequal shares", info.name),
      "choose parallel.tensor.size that divides the features, or set dropout to 0");
  if (sharers != nullptr) {
    key.columns = sharers->size();
    key.column = sharers->index;
  }
  flow_form(context).cut_inner_dropout(key, context);
  return nn::dropout(x, key);
}

at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const ops::DropoutKey& key) {
  if (key.active()) return detail::apply<AddDropoutNode>(x, branch, key);
  ops::check_residual(x, branch);
  return x + branch;
}

std::vector<at::Tensor> split_heads(const at::Tensor& x_BTO,
                                    std::int64_t parts,
                                    std::int64_t num_heads) {
  return detail::apply<SplitHeadsNode>(x_BTO, parts, num_heads);
}

HeadRange heads_of(const Param& weight) {
  const mesh::Box box = weight.info().held();
  return {box.begin.at(1), box.end.at(1) - box.begin.at(1)};
}

Qkv split_qkv(const at::Tensor& x_BTO, const Param& weight, HeadRange queries) {
  const ParamInfo& info = weight.info();
  if (info.axes.front() != LogicalAxis::KvHeads) {
    const HeadRange heads = heads_of(weight);
    variable_list qkv = split_heads(x_BTO, 3, heads.count);
    return {std::move(qkv[0]), std::move(qkv[1]), std::move(qkv[2]), heads.first};
  }
  const mesh::Box box = info.held();
  const std::int64_t of_group = info.shape.at(1) - 2;
  const SplitGroupsNode::Groups groups{box.end.front() - box.begin.front(),
                                       queries.count > 0 ? queries.count : of_group};
  variable_list qkv = detail::apply<SplitGroupsNode>(x_BTO, groups);
  return {std::move(qkv[0]),
          std::move(qkv[1]),
          std::move(qkv[2]),
          box.begin.front() * of_group + queries.first};
}

at::Tensor merge_heads(const at::Tensor& x_BHTK) {
  return x_BHTK.transpose(1, 2).reshape(
      {x_BHTK.size(0), x_BHTK.size(2), x_BHTK.size(1) * x_BHTK.size(3)});
}

}  // namespace tessera::nn
