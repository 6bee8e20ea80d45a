// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/reduce_parts.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/reduce.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {

void reduce_parts(const at::Tensor& parts_PN,
                  comm::Op op,
                  bool accumulate,
                  const at::Tensor& out_N) {
  TESSERA_REQUIRE(parts_PN.dim() == 2 && parts_PN.size(0) > 0 && out_N.dim() == 1 &&
                      parts_PN.size(1) == out_N.size(0) &&
                      parts_PN.scalar_type() == out_N.scalar_type() && parts_PN.is_contiguous() &&
                      out_N.is_contiguous(),
                  Shape,
                  fmt::format("parts {} and a result {}", shape(parts_PN), shape(out_N)),
                  "expected contiguous [parts, elements] and [elements] of one dtype");
  const DType dtype = from_torch(out_N.scalar_type());
  TESSERA_REQUIRE(comm::can_reduce(op, dtype),
                  Unsupported,
                  fmt::format("the reduction of {} is not supported", name(dtype)),
                  "reduce F32, F64, BF16, I64, I32 or U8; BitOr only integers");
  if (out_N.numel() == 0 || out_N.is_meta()) return;
  backend(out_N.device()).reduce_parts(parts_PN, op, accumulate, out_N);
}

}  // namespace tessera::ops
