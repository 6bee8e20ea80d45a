// SPDX-License-Identifier: Apache-2.0
// The feed-forward network of a transformer layer, as layers use it: an MLP, or another part that
// maps each token to its branch. docs/adding/feed_forward.md shows how to add one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/models/experts_spec.h"
#include "tessera/models/mlp_spec.h"
#include "tessera/nn/block.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/activation.h"

namespace tessera::models {

/// A part of a layer that maps normalized tokens to a branch. It is written for one device and
/// never looks at ranks.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  /// Called once, between the layer's other declarations: the order of parameters is that of their
  /// initial values.
  virtual void declare(nn::Params& params) = 0;
  /// Maps normalized h [B, T, C] to the branch [B, T, C]. Appends its terms of the loss, if it has
  /// some, to `terms`. Also runs on meta tensors. Its backward is that of the functions of nn/.
  virtual at::Tensor operator()(const at::Tensor& h_BTC,
                                nn::StepContext& context,
                                std::vector<nn::Term>& terms) const = 0;
  /// Not 0 if a term of the loss covers all layers of the model together: the number of experts,
  /// whose sums pass from layer to layer in training. Such a network has a pooled().
  [[nodiscard]] virtual std::int64_t pools() const { return 0; }
  /// Does what operator() does, and adds the sums of this layer to `sums`.
  virtual at::Tensor pooled(const at::Tensor& h_BTC,
                            nn::StepContext& context,
                            std::vector<nn::Term>& terms,
                            nn::PooledBalance& /*sums*/) const {
    return (*this)(h_BTC, context, terms);
  }
  /// As nn::Block::exchanges() and idle(), which the layer forwards: idle() appends the leaf h [0,
  /// C] to `inputs`, and returns the branch [0, C]; undefined if there is nothing to exchange.
  [[nodiscard]] virtual bool exchanges() const { return false; }
  virtual at::Tensor idle(std::vector<at::Tensor>& /*inputs*/, nn::StepContext& /*context*/) const {
    return {};
  }
  /// See nn::HasExperts, which the layer implements.
  [[nodiscard]] virtual nn::HasExperts::Router router() const { return {}; }
  /// As nn::Block::works_by_token() and grid_obstacle(), which the layer forwards.
  [[nodiscard]] virtual bool works_by_token() const { return true; }
  [[nodiscard]] virtual std::string grid_obstacle() const { return {}; }

  struct Size {
    std::int64_t total = 0;    ///< parameters
    std::int64_t active = 0;   ///< parameters that one token uses
    double flops_a_token = 0;  ///< of the products of forward
  };
  [[nodiscard]] virtual Size size() const = 0;
};

/// The description that a family gives of the feed-forward network of a layer; layers may differ.
using FeedForwardSpec = std::variant<MlpSpec, ExpertsSpec>;
FeedForward::Size size_of(const FeedForwardSpec& spec);
/// Throws Error{Config} for an unknown activation.
std::unique_ptr<FeedForward> make_feed_forward(const FeedForwardSpec& spec);

}  // namespace tessera::models
