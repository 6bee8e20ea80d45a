// SPDX-License-Identifier: Apache-2.0
// Helpers for the autograd nodes of this folder. The headers are heavy, so only .cpp files include
// this one.
#pragma once

#include <functional>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/step_context.h"
#include "tessera/nn/thread_context.h"
#include "tessera/tensor/param.h"

namespace tessera::nn::detail {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Holds a value of any type in a node's saved data.
template <class T>
struct Kept : torch::CustomClassHolder {
  explicit Kept(T v) : value(std::move(v)) {}
  T value;
};

/// The graph node for N. Its backward restores the thread-local state of its forward, because
/// libtorch may run the backward on another thread.
template <class N>
struct InContext : torch::autograd::Function<InContext<N>> {
  template <class... Arguments>
  static auto forward(AutogradContext* node, Arguments&&... arguments) {
    node->saved_data["thread"] =
        at::IValue::make_capsule(c10::make_intrusive<Kept<ThreadContext>>(ThreadContext()));
    return N::forward(node, std::forward<Arguments>(arguments)...);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto thread = node->saved_data.at("thread").toCapsule();
    const ThreadContext::Scope scope(static_cast<Kept<ThreadContext>*>(thread.get())->value);
    return N::backward(node, grads);
  }
};

/// Applies the node N, which has forward() and backward() as torch::autograd::Function requires.
/// With grad mode off it calls only N::forward(), with nullptr as its node: libtorch would create
/// and drop a node, which takes longer than the work on one token.
template <class N, class... Arguments>
auto apply(Arguments&&... arguments) {
  if (at::GradMode::is_enabled()) return InContext<N>::apply(std::forward<Arguments>(arguments)...);
  return N::forward(nullptr, std::forward<Arguments>(arguments)...);
}

/// Saves tensors for the node's backward, if there is a node.
inline void save(AutogradContext* node, variable_list tensors) {
  if (node != nullptr) node->save_for_backward(std::move(tensors));
}

template <class T>
void keep(AutogradContext* node, T value) {
  if (node == nullptr) return;
  node->saved_data["kept"] =
      at::IValue::make_capsule(c10::make_intrusive<Kept<T>>(std::move(value)));
}
template <class T>
T& kept(AutogradContext* node) {
  return static_cast<Kept<T>*>(node->saved_data.at("kept").toCapsule().get())->value;
}

/// Returns [..., C] as contiguous rows [N, C].
inline at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)}).contiguous();
}
/// Returns a weight [O..., I] as a matrix [O, I].
inline at::Tensor matrix(const at::Tensor& weight) {
  return weight.view({-1, weight.size(-1)});
}

/// Recomputes a tensor, bit by bit the same, from what its own node saved; valid until that node's
/// backward. A node that needs such a tensor in its backward saves this function instead of the
/// tensor. Source: the cheap operators of Chen et al. 2016, "Training deep nets with sublinear
/// memory cost".
using Again = std::function<at::Tensor()>;
/// Returns the function that recomputes `x` if a node of type N, which has again(AutogradContext*),
/// made it; else an empty function.
template <class N>
Again again_by(const at::Tensor& x) {
  auto node = std::dynamic_pointer_cast<torch::autograd::CppNode<InContext<N>>>(x.grad_fn());
  if (node == nullptr) return {};
  return [node = std::move(node)] { return N::again(&node->ctx_); };
}
Again activation_again(const at::Tensor& x);
Again norm_again(const at::Tensor& x);

/// Computes a weight gradient now, or later when the schedule defers weight gradients. `make`
/// itself calls GradSink::written().
inline void weight_gradient(StepContext& context, std::function<void()> make) {
  if (context.deferring()) {
    context.defer(std::move(make));
  } else {
    make();
  }
}

/// Adds the gradient dy [N, C] of looked-up rows to a table's gradient, in the order of the tokens.
/// `rows_N` (int64) are rows of this rank's part of the table.
void write_rows(const at::Tensor& dy_NC, const at::Tensor& rows_N, GradSink& sink);

}  // namespace tessera::nn::detail
