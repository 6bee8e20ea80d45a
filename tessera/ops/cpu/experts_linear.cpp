// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/experts_linear.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/ops/backend.h"
#include "tessera/ops/cost.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/few_rows.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {

at::Tensor linear_of_experts(const at::Tensor& x_QI,
                             const ExpertMatrices& matrices,
                             const std::vector<RowsOfExpert>& units) {
  const at::Tensor& weight = matrices.weight_EOI;
  if (!x_QI.is_cpu() || units.empty() || OpTrace::current() != nullptr ||
      dynamic_cast<const cpu::CpuBackend*>(&backend(x_QI.device())) == nullptr ||
      !cpu::few_rows_of_experts_fit(x_QI, weight, units) ||
      (matrices.scales_EO.defined() && !matrices.scales_EO.is_contiguous()) ||
      (matrices.bias_EO.defined() && !matrices.bias_EO.is_contiguous()))
    return {};
  const std::int64_t Q = x_QI.size(0), O = weight.size(1), I = weight.size(2);
  const OpScope scope("linear of experts", [&] {
    const auto all = static_cast<double>(Q * O);
    return OpWork{.flops = 2.0 * all * static_cast<double>(I),
                  .bytes = static_cast<double>(x_QI.nbytes()) +
                           static_cast<double>(units.size()) * static_cast<double>(O * I) *
                               static_cast<double>(weight.element_size()) +
                           all * static_cast<double>(x_QI.element_size()),
                  .shape = fmt::format("{} x {} -> {} of {} experts", Q, I, O, units.size()),
                  .shape_class = class_of_product(Q, I, O),
                  .dtype = from_torch(weight.scalar_type())};
  });
  return cpu::few_rows_of_experts(x_QI, matrices, units);
}

}  // namespace tessera::ops
