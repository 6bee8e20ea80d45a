// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/nf4.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {

void AtenBackend::widen_nf4(const at::Tensor& codes,
                            const at::Tensor& scales,
                            const at::Tensor& out) const {
  const at::Tensor table = at::tensor(at::ArrayRef<float>(kNf4Values), scales.options());
  const at::Tensor bytes = codes.to(at::kInt);
  const at::Tensor places = at::stack({bytes.floor_divide(16), bytes.remainder(16)}, 1).view({-1});
  const at::Tensor values =
      table.index_select(0, places).view({-1, kNf4Block}) * scales.unsqueeze(1);
  out.copy_(values.view({-1}).narrow(0, 0, out.numel()).view(out.sizes()));
}

void AtenBackend::narrow_nf4(const at::Tensor& values,
                             const at::Tensor& codes_out,
                             const at::Tensor& scales_out) const {
  const std::int64_t blocks = scales_out.numel();
  const at::Tensor whole = at::zeros({blocks * kNf4Block}, values.options());
  whole.narrow(0, 0, values.numel()).copy_(values.view({-1}));
  const at::Tensor rows = whole.view({blocks, kNf4Block});
  const at::Tensor largest = rows.abs().amax(1);
  scales_out.copy_(largest);
  const at::Tensor inverse = largest.clamp_min(1e-38).reciprocal().unsqueeze(1);
  const at::Tensor midpoints = at::tensor(at::ArrayRef<float>(kNf4Midpoints), values.options());
  const at::Tensor places = at::bucketize(rows * inverse, midpoints).view({-1, 2});
  codes_out.copy_(places.select(1, 0) * 16 + places.select(1, 1));
}

}  // namespace tessera::ops::aten
