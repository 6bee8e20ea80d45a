// SPDX-License-Identifier: Apache-2.0
// The sparse feed-forward network of a transformer layer: a router, experts, and shared experts.
#pragma once

#include <memory>
#include <vector>

#include "tessera/models/feed_forward.h"
#include "tessera/models/mlp.h"
#include "tessera/nn/experts.h"

namespace tessera::models {

FeedForward::Size size_of(const ExpertsSpec& spec);

/// sum over the chosen experts of weight * expert(h), in the order of the choices, plus the output
/// of the shared experts. Sources: Shazeer et al. 2017, "Outrageously large neural networks: the
/// sparsely-gated mixture-of-experts layer"; Dai et al. 2024, "DeepSeekMoE".
class Experts final : public FeedForward {
 public:
  /// Throws Error{Config} for an unknown activation.
  explicit Experts(ExpertsSpec spec);
  /// Declares the router, its correction, the experts and the shared experts, as ExpertsSpec names
  /// them.
  void declare(nn::Params& params) override;
  at::Tensor operator()(const at::Tensor& h_BTC,
                        nn::StepContext& context,
                        std::vector<nn::Term>& terms) const override;
  [[nodiscard]] std::int64_t pools() const override {
    return nn::pools_layers(spec_.balance) ? spec_.num_experts : 0;
  }
  at::Tensor pooled(const at::Tensor& h_BTC,
                    nn::StepContext& context,
                    std::vector<nn::Term>& terms,
                    nn::PooledBalance& sums) const override;
  [[nodiscard]] bool exchanges() const override { return true; }
  at::Tensor idle(std::vector<at::Tensor>& inputs, nn::StepContext& context) const override;
  [[nodiscard]] std::string grid_obstacle() const override { return "experts"; }
  [[nodiscard]] nn::HasExperts::Router router() const override;
  [[nodiscard]] Size size() const override { return size_of(spec_); }

 private:
  [[nodiscard]] at::Tensor apply(const at::Tensor& h_BTC,
                                 nn::StepContext& context,
                                 std::vector<nn::Term>& terms,
                                 nn::PooledBalance* sums) const;
  [[nodiscard]] at::Tensor shared(const at::Tensor& h_BTC,
                                  nn::StepContext& context,
                                  std::vector<nn::Term>& terms) const;

  ExpertsSpec spec_;
  nn::ExpertForm form_;
  mutable nn::ExpertLoad load_;
  nn::ExpertWeights weights_;
  std::unique_ptr<Mlp> shared_;
  Param* shared_gate_ = nullptr;
  Param* sum_bias_ = nullptr;
};

}  // namespace tessera::models
