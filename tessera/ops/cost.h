// SPDX-License-Identifier: Apache-2.0
// The time of operations on a machine, from the work that they log (op_log.h).
#pragma once

#include <cstdint>
#include <span>

#include "tessera/base/machine.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {

/// The class of a product of [rows, terms] and [terms, columns]: FewRows below kFewRows rows,
/// TallProduct if terms or columns are below kFewTerms, else LargeProduct.
ShapeClass class_of_product(std::int64_t rows, std::int64_t terms, std::int64_t columns) noexcept;
inline constexpr std::int64_t kFewRows = 16, kFewTerms = 256;

/// Predicted seconds of all calls of a row: the arithmetic or the memory traffic, whichever takes
/// longer, and the overhead of each call. Where the machine has no rate for the class and dtype,
/// the memory traffic decides. Does not read OpRow::seconds, which is measured. Pure.
double seconds(const OpRow& row, const Machine& machine);
double seconds(std::span<const OpRow> rows, const Machine& machine);

}  // namespace tessera::ops
