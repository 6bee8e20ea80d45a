// SPDX-License-Identifier: Apache-2.0
// The products of rows with the matrices of experts, with their adapters and gradients, for the
// autograd nodes of this folder. Legend: Q rows for this rank's experts, O outputs, I inputs, R
// rank of an adapter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/nn/autograd.h"
#include "tessera/nn/expert_exchange.h"
#include "tessera/nn/expert_low_rank.h"
#include "tessera/ops/expert_rows.h"

namespace tessera::nn::detail {

/// The adapters of a stacked weight.
struct ExpertLowRank final : ParamExtension {
  struct Part {
    std::int64_t begin = 0, end = 0;
    double scale = 1.0;
    Param* a = nullptr;
    Param* b = nullptr;
  };
  std::vector<Part> parts;
};
/// The adapters with which the weight computes; nullptr: none.
const ExpertLowRank* adapters_of(const Param& weight);
/// A parameter of these adapters, through which autograd reaches a node.
std::optional<at::Tensor> reach_of(const Param& weight);

/// x W^T + b of one of this rank's experts, in x's dtype, with the adapters.
at::Tensor expert_product(const at::Tensor& x_QI,
                          const Param& weight,
                          const Param* bias,
                          std::int64_t expert);
/// The products of all units, bit by bit those of expert_product() of each; undefined if they
/// should be computed one after the other.
at::Tensor expert_products(const at::Tensor& x_QI,
                           const Param& weight,
                           const Param* bias,
                           const std::vector<ExpertUnit>& units);
/// The gradient of x_QI from that of the product.
at::Tensor expert_input_grad(const at::Tensor& dy_QO, const Param& weight, std::int64_t expert);

/// The destinations of the gradients of one parameter in one micro-batch, a slice for each rank of
/// data parallelism. The rows of each unit are written once, in any order of rounds; experts
/// without rows of a slice get zeros in it.
class ExpertSlices {
 public:
  ExpertSlices(const Param* param, std::shared_ptr<const ExpertExchange> exchange);
  /// Calls write(destination, whether to add to it) for a unit, if the parameter is trained.
  template <class Write>
  void add(const ExpertUnit& unit, const Write& write) {
    if (param_ == nullptr) return;
    const int slice = exchange_->slice_of(unit.source);
    const at::Tensor& out = open(slice);
    const auto at = static_cast<std::size_t>(slice * experts() + unit.expert);
    write(out.select(0, unit.expert), holds_[at]);
    holds_[at] = true;
  }

 private:
  [[nodiscard]] std::int64_t experts() const {
    return exchange_->own().second - exchange_->own().first;
  }
  const at::Tensor& open(int slice);

  const Param* param_;  ///< nullptr: not trained
  std::shared_ptr<const ExpertExchange> exchange_;
  std::vector<bool> begun_;  ///< [slices]
  std::vector<bool> holds_;  ///< [slices, experts]: there is a sum to add to
};

/// True if ExpertWeightSums needs the operands.
bool trains_weight(const Param& weight);

/// The gradients of a stacked weight, its bias and its adapters, each of which may be frozen, in
/// one micro-batch.
class ExpertWeightSums {
 public:
  /// `bias` may be nullptr.
  ExpertWeightSums(const Param& weight,
                   const Param* bias,
                   const std::shared_ptr<const ExpertExchange>& exchange);
  /// Adds the gradients of a unit's rows. `x_QI` may be undefined if !trains_weight().
  void add(const ExpertUnit& unit, const at::Tensor& x_QI, const at::Tensor& dy_QO);

 private:
  struct Adapter {
    const ExpertLowRank::Part* part;
    ExpertSlices a, b;
  };
  ExpertSlices weight_, bias_;
  std::vector<Adapter> adapters_;
};

/// Rows of one unit.
inline at::Tensor rows_of(const at::Tensor& rows_QC, const ExpertUnit& unit) {
  return rows_QC.narrow(0, unit.begin, unit.rows);
}

/// The rows of choices [N, K] (int32), which have no values on meta: then as many for each expert.
ops::ExpertRows rows_of_choices(const at::Tensor& experts_NK,
                                std::int64_t num_experts,
                                at::Device device);

}  // namespace tessera::nn::detail
