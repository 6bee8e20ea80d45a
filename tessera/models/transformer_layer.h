// SPDX-License-Identifier: Apache-2.0
// A transformer layer: self-attention and a feed-forward network, each with a norm and a residual
// connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/feed_forward.h"
#include "tessera/models/norm.h"
#include "tessera/models/self_attention.h"
#include "tessera/nn/block.h"

namespace tessera::models {

/// The connection of a layer's two branches to the residual stream x.
enum class ResidualOrder : std::uint8_t {
  PreNorm,   ///< y = x + attention(norm(x)), then y + mlp(norm(y))
  PostNorm,  ///< y = norm(x + attention(x)), then norm(y + mlp(y))
  Parallel   ///< x + attention(norm(x)) + mlp(norm(x)), each with its own norm
};

struct LayerSpec {
  SelfAttentionSpec attention;
  FeedForwardSpec mlp;
  NormSpec norm;
  std::string attention_norm_name, mlp_norm_name;  ///< "ln_1", "ln_2"
  ResidualOrder order = ResidualOrder::PreNorm;
  double residual_dropout = 0.0;  ///< dropout of the outputs of attention and MLP
};

/// Declares the norm of attention, attention, the norm of the MLP, and the MLP, in this order.
class TransformerLayer final : public nn::Block, public nn::HasExperts {
 public:
  explicit TransformerLayer(const LayerSpec& spec);
  void declare(nn::Params& params) override;
  [[nodiscard]] bool works_by_token() const override { return feed_forward_->works_by_token(); }
  [[nodiscard]] std::string grid_obstacle() const override {
    return feed_forward_->grid_obstacle();
  }
  [[nodiscard]] nn::HasExperts::Router router() const override { return feed_forward_->router(); }
  [[nodiscard]] bool exchanges() const override { return feed_forward_->exchanges(); }
  nn::Outcome idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) override;
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override;

 private:
  [[nodiscard]] at::Tensor pre_norm(const at::Tensor& x_BTC,
                                    const nn::Batch& batch,
                                    nn::StepContext& context,
                                    std::vector<nn::Term>& terms) const;
  [[nodiscard]] at::Tensor post_norm(const at::Tensor& x_BTC,
                                     const nn::Batch& batch,
                                     nn::StepContext& context,
                                     std::vector<nn::Term>& terms) const;
  [[nodiscard]] at::Tensor parallel(const at::Tensor& x_BTC,
                                    const nn::Batch& batch,
                                    nn::StepContext& context,
                                    std::vector<nn::Term>& terms) const;

  LayerSpec spec_;
  SelfAttention attention_;
  std::unique_ptr<FeedForward> feed_forward_;
  Norm attention_norm_, mlp_norm_;
};

}  // namespace tessera::models
