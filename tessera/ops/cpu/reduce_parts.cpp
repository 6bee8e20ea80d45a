// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/reduce_parts.h"

#include <vector>

#include "tessera/comm/reduce.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops::cpu {

void CpuBackend::reduce_parts(const at::Tensor& parts_PN,
                              comm::Op op,
                              bool accumulate,
                              const at::Tensor& out_N) const {
  std::vector<const void*> inputs;
  if (accumulate) inputs.push_back(out_N.const_data_ptr());
  const auto* const first = static_cast<const std::byte*>(parts_PN.const_data_ptr());
  for (std::int64_t part = 0; part < parts_PN.size(0); ++part)
    inputs.push_back(first + static_cast<std::size_t>(part) * out_N.nbytes());
  comm::reduce_arrays(op,
                      from_torch(out_N.scalar_type()),
                      out_N.data_ptr(),
                      inputs,
                      static_cast<std::size_t>(out_N.numel()));
}

}  // namespace tessera::ops::cpu
