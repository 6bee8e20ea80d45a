// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {

void AtenBackend::embedding(const at::Tensor& table_VC,
                            const at::Tensor& ids_N,
                            const at::Tensor& y_NC) const {
  check_ids(ids_N, table_VC.size(0));
  y_NC.copy_(table_VC.index_select(0, ids_N.reshape({-1})).view(y_NC.sizes()));
}

void AtenBackend::embedding_grad(const at::Tensor& dy_NC,
                                 const at::Tensor& ids_N,
                                 bool accumulate,
                                 const at::Tensor& dw_VC) const {
  check_ids(ids_N, dw_VC.size(0));
  if (!accumulate) dw_VC.zero_();
  const at::Tensor rows = dy_NC.reshape({-1, dw_VC.size(1)}).to(at::kFloat);
  dw_VC.index_add_(0, ids_N.reshape({-1}), rows);
}

}  // namespace tessera::ops::aten
