// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {

at::Tensor embedding(const at::Tensor& table_VC, const at::Tensor& ids_N) {
  std::vector<std::int64_t> sizes = ids_N.sizes().vec();
  sizes.push_back(table_VC.size(1));
  at::Tensor y = at::empty(sizes, table_VC.options());
  const OpScope scope("embedding", [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(y.nbytes()),
                  .shape = shape(y),
                  .shape_class = ShapeClass::Rows};
  });
  if (table_VC.is_meta()) return y;
  backend(table_VC.device()).embedding(table_VC, ids_N, y);
  trace_call("tessera::embedding", [&] { return std::vector<c10::IValue>{table_VC, ids_N}; }, {y});
  return y;
}

void embedding_grad(const at::Tensor& dy_NC,
                    const at::Tensor& ids_N,
                    const at::Tensor& dw_VC,
                    bool accumulate) {
  const std::int64_t V = dw_VC.size(0), C = dw_VC.size(1), N = ids_N.numel();
  TESSERA_REQUIRE(dy_NC.numel() == N * C,
                  Shape,
                  "embedding gradient of " + shape(dy_NC) + " for " + std::to_string(N) + " tokens",
                  "expected [" + std::to_string(N) + ", " + std::to_string(C) + "]");
  // Rows of the table are read and written; unless the result is added, the whole table is zeroed.
  const OpScope scope("embedding backward", [&] {
    const double table = accumulate ? 0.0 : static_cast<double>(dw_VC.nbytes());
    return OpWork{.bytes = static_cast<double>(dy_NC.nbytes()) +
                           8.0 * static_cast<double>(dy_NC.numel()) + table,
                  .shape = shape(dy_NC),
                  .shape_class = ShapeClass::Rows};
  });
  if (dw_VC.is_meta() || dy_NC.is_meta()) return;
  check_destination(dw_VC, V * C, "the embedding's gradient");
  backend(dy_NC.device()).embedding_grad(dy_NC, ids_N, accumulate, dw_VC);
}

}  // namespace tessera::ops
