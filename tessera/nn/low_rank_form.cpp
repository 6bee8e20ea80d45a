// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/low_rank_form.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/tensor_parallel/one_d.h"

namespace tessera::nn {
namespace {

/// The sums of the squares of the rows of `held` + scale B A, in fp32.
at::Tensor squares_of_rows(const at::Tensor& held, const Param& a, const Param& b, double scale) {
  const at::Tensor rows_OI = held.reshape({-1, held.size(-1)});
  const at::Tensor a_RI = a.tensor().to(at::kFloat) * scale,
                   b_OR = b.tensor().reshape({-1, b.tensor().size(-1)});
  constexpr std::int64_t kRows = 1024;
  std::vector<at::Tensor> squares;
  for (std::int64_t row = 0; row < rows_OI.size(0); row += kRows) {
    const std::int64_t count = std::min(kRows, rows_OI.size(0) - row);
    const at::Tensor sum = at::addmm(rows_OI.narrow(0, row, count).to(at::kFloat),
                                     b_OR.narrow(0, row, count).to(at::kFloat),
                                     a_RI);
    squares.push_back(sum.square().sum(1));
  }
  return at::cat(squares);
}

/// This rank has all inputs of its outputs.
class AllInputs : public LowRankForm {
 public:
  [[nodiscard]] at::Tensor drop_input(const at::Tensor& x,
                                      ops::DropoutKey key,
                                      const ParamInfo& /*weight*/,
                                      const Param& /*a*/,
                                      const StepContext& /*context*/) const override {
    return nn::dropout(x, key);
  }
  [[nodiscard]] at::Tensor product(const at::Tensor& x,
                                   const Param& a,
                                   const Param& b,
                                   double scale,
                                   StepContext& context) const override {
    const at::Tensor low = plain_linear(x, a, nullptr, context) * scale;
    return plain_linear(low, b, nullptr, context);
  }
  [[nodiscard]] at::Tensor row_norms(const at::Tensor& held,
                                     const ParamInfo& /*weight*/,
                                     const Param& a,
                                     const Param& b,
                                     double scale,
                                     StepContext& /*context*/) const override {
    return squares_of_rows(held, a, b, scale).sqrt();
  }
  [[nodiscard]] at::Tensor magnitude(const Param& vector, StepContext& /*context*/) const override {
    return vector.tensor();
  }
  [[nodiscard]] bool merges() const override { return true; }
};

/// Mode 1d: each rank has some of the inputs.
class SplitInputs final : public AllInputs {
 public:
  [[nodiscard]] at::Tensor drop_input(const at::Tensor& x,
                                      ops::DropoutKey key,
                                      const ParamInfo& weight,
                                      const Param& /*a*/,
                                      const StepContext& context) const override {
    const std::int64_t ranks = context.tensor->group->size();
    TESSERA_REQUIRE(!context.cuts_tokens() && !context.shares_tokens() &&
                        weight.shape.back() == ranks * weight.local_shape().back(),
                    Unsupported,
                    fmt::format("adapter.dropout before {}, of whose features ranks hold unequal "
                                "shares or share the tokens too",
                                weight.name),
                    "set adapter.dropout to 0, or parallel.sequence to false and "
                    "parallel.tensor.size to a divisor of the features");
    key.columns = ranks;
    key.column = context.tensor->group->index;
    return nn::dropout(x, key);
  }
  [[nodiscard]] at::Tensor row_norms(const at::Tensor& held,
                                     const ParamInfo& /*weight*/,
                                     const Param& a,
                                     const Param& b,
                                     double scale,
                                     StepContext& context) const override {
    return one_d::all_of(squares_of_rows(held, a, b, scale),
                         *context.tensor->group,
                         "norms of an adapter's rows",
                         context)
        .sum(0)
        .sqrt();
  }
};

}  // namespace

const LowRankForm& low_rank_form(const Param& weight, const StepContext& context) {
  static const AllInputs all_inputs;
  static const SplitInputs split_inputs;
  if (context.splits_samples() && weight.info().cut()) return grid_low_rank_form();
  const bool split = one_d::cut_of(weight.info()) == one_d::Cut::Inputs;
  return split ? static_cast<const LowRankForm&>(split_inputs) : all_inputs;
}

}  // namespace tessera::nn
