// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/span.h"

namespace tessera {

comm::Span span_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(),
          static_cast<std::size_t>(tensor.numel()),
          from_torch(tensor.scalar_type()),
          {}};
}

}  // namespace tessera
