// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include <cstring>

#include "tessera/ops/arguments.h"
#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {

void CpuBackend::embedding(const at::Tensor& table_VC,
                           const at::Tensor& ids_N,
                           const at::Tensor& y_NC) const {
  const at::Tensor ids = ids_N.contiguous(), table = table_VC.contiguous();
  check_ids(ids, table.size(0));
  const std::size_t row = static_cast<std::size_t>(table.size(1)) * table.element_size();
  const char* from = static_cast<const char*>(table.data_ptr());
  char* to = static_cast<char*>(y_NC.data_ptr());
  const std::int64_t* id = ids.data_ptr<std::int64_t>();
  parallel(ids.numel(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(to + static_cast<std::size_t>(i) * row,
                  from + static_cast<std::size_t>(id[i]) * row,
                  row);
    }
  });
}

void CpuBackend::embedding_grad(const at::Tensor& dy_NC,
                                const at::Tensor& ids_N,
                                bool accumulate,
                                const at::Tensor& dw_VC) const {
  const std::int64_t C = dw_VC.size(1), N = ids_N.numel();
  const at::Tensor ids = ids_N.contiguous(), dy = dy_NC.contiguous();
  check_ids(ids, dw_VC.size(0));
  auto* to = dw_VC.data_ptr<float>();
  if (!accumulate) dw_VC.zero_();
  // Threads divide the columns, not the tokens, so every element is added to in token order,
  // whatever the number of threads.
  const auto kernel = kernels().embedding_grad[float_of(dy)];
  parallel(C, 64, [&](std::int64_t begin, std::int64_t end) {
    kernel(dy.data_ptr(), ids.data_ptr<std::int64_t>(), to, N, C, begin, end);
  });
}

}  // namespace tessera::ops::cpu
