// SPDX-License-Identifier: Apache-2.0
// Rows of a table by token id, and the gradient of the table. Legend: N tokens, V rows, C channels.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// y_NC = table_VC[ids_N] in the table's dtype. ids: int64; throws Error{Data} unless 0 <= id < V.
/// Works on meta.
at::Tensor embedding(const at::Tensor& table_VC, const at::Tensor& ids_N);
/// Adds the rows of dy to the fp32 table dw_VC (zeroed first unless `accumulate`), in token order:
/// the same bits for any number of threads.
void embedding_grad(const at::Tensor& dy_NC,
                    const at::Tensor& ids_N,
                    const at::Tensor& dw_VC,
                    bool accumulate);

}  // namespace tessera::ops
