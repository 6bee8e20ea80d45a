// SPDX-License-Identifier: Apache-2.0
// Layers without parameters but attention: activations, dropout, and the two changes of shape
// around attention.
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct ActivateNode : torch::autograd::Function<ActivateNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            ops::Activation activation) {
    node->save_for_backward({x});
    keep(node, activation);
    return ops::activate(x, activation);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const at::Tensor x = node->get_saved_variables()[0];
    return {ops::activate_backward(grads[0].contiguous(), x, kept<ops::Activation>(node)), {}};
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

struct SplitHeadsNode : torch::autograd::Function<SplitHeadsNode> {
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x_BTO,
                               std::int64_t parts,
                               std::int64_t num_heads) {
    keep(node, x_BTO.sizes().vec());
    const at::Tensor heads = x_BTO.reshape({x_BTO.size(0), x_BTO.size(1), parts, num_heads, -1});
    variable_list out;
    for (std::int64_t part = 0; part < parts; ++part)
      out.push_back(heads.select(2, part).transpose(1, 2));
    return out;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads_BHTK) {
    const auto parts = static_cast<std::int64_t>(grads_BHTK.size());
    const at::Tensor& first = grads_BHTK[0];
    const at::Tensor dx = at::empty(
        {first.size(0), first.size(2), parts, first.size(1), first.size(3)}, first.options());
    for (std::int64_t part = 0; part < parts; ++part) {
      dx.select(2, part).copy_(grads_BHTK[static_cast<std::size_t>(part)].transpose(1, 2));
    }
    return {dx.view(kept<std::vector<std::int64_t>>(node)), {}, {}};
  }
};

}  // namespace

at::Tensor activate(const at::Tensor& x, ops::Activation activation) {
  return ActivateNode::apply(x, activation);
}

at::Tensor dropout(const at::Tensor& x, const ops::DropoutKey& key) {
  return key.active() ? DropoutNode::apply(x, key) : x;
}

std::vector<at::Tensor> split_heads(const at::Tensor& x_BTO,
                                    std::int64_t parts,
                                    std::int64_t num_heads) {
  return SplitHeadsNode::apply(x_BTO, parts, num_heads);
}

at::Tensor merge_heads(const at::Tensor& x_BHTK) {
  return x_BHTK.transpose(1, 2).reshape({x_BHTK.size(0), x_BHTK.size(2), -1});
}

}  // namespace tessera::nn
