// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/reduce_parts.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {
namespace {

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

at::Tensor combined(comm::Op op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case comm::Op::Sum:
      return a + b;
    case comm::Op::Max:
      return at::maximum(a, b);
    case comm::Op::Min:
      return at::minimum(a, b);
    case comm::Op::BitOr:
      break;
  }
  return a.bitwise_or(b);
}

}  // namespace

void AtenBackend::reduce_parts(const at::Tensor& parts_PN,
                               comm::Op op,
                               bool accumulate,
                               const at::Tensor& out_N) const {
  at::Tensor result = widened(parts_PN[0]);
  if (accumulate) result = combined(op, widened(out_N), result);
  for (std::int64_t part = 1; part < parts_PN.size(0); ++part)
    result = combined(op, result, widened(parts_PN[part]));
  out_N.copy_(result);
}

}  // namespace tessera::ops::aten
