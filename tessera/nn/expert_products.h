// SPDX-License-Identifier: Apache-2.0
// The products of rows with the matrices of experts, with their adapters and gradients, for the
// autograd nodes of this folder. Legend: Q rows for this rank's experts, O outputs, I inputs, R
// rank of an adapter.
#pragma once

#include <cstdint>
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
/// The gradient of x_QI from that of the product.
at::Tensor expert_input_grad(const at::Tensor& dy_QO, const Param& weight, std::int64_t expert);

/// The operands of the gradients of a weight, one of each list for each unit of the exchange.
struct ExpertOperands {
  std::vector<at::Tensor> x_QI, dy_QO;
};
/// True if expert_weight_grads() needs the operands.
bool trains_weight(const Param& weight);
/// Writes the gradients of the weight, its bias and its adapters, which may be frozen, a slice for
/// each source.
void expert_weight_grads(const Param& weight,
                         const Param* bias,
                         const ExpertExchange& exchange,
                         const ExpertOperands& operands);

/// Rows of one unit.
inline at::Tensor rows_of(const at::Tensor& rows_QC, const ExpertUnit& unit) {
  return rows_QC.narrow(0, unit.begin, unit.rows);
}

/// The rows of choices [N, K] (int32), which have no values on meta: then as many for each expert.
ops::ExpertRows rows_of_choices(const at::Tensor& experts_NK,
                                std::int64_t num_experts,
                                at::Device device);

}  // namespace tessera::nn::detail
