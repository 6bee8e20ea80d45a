// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cost.h"

#include <algorithm>

namespace tessera::ops {

ShapeClass class_of_product(std::int64_t rows, std::int64_t terms, std::int64_t columns) noexcept {
  if (rows < kFewRows) return ShapeClass::FewRows;
  return std::min(terms, columns) < kFewTerms ? ShapeClass::TallProduct : ShapeClass::LargeProduct;
}

double seconds(const OpRow& row, const Machine& machine) {
  const auto rate = machine.flops_per_s.find({row.shape_class, row.dtype});
  const double arithmetic =
      rate == machine.flops_per_s.end() || rate->second <= 0 ? 0.0 : row.flops / rate->second;
  const auto calls = static_cast<double>(row.calls);
  return std::max(arithmetic, machine.memory.seconds(row.bytes, calls)) +
         machine.op_overhead_s * calls;
}

double seconds(std::span<const OpRow> rows, const Machine& machine) {
  double sum = 0;
  for (const OpRow& row : rows)
    sum += seconds(row, machine);
  return sum;
}

}  // namespace tessera::ops
