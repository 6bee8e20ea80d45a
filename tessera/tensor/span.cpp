// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/span.h"

namespace tessera {

comm::Span span_of(const at::Tensor& tensor) {
  // A tensor without memory belongs to a job that does not run (comm/transports/shapes.h).
  const Device device = tensor.is_meta() ? Device{} : from_torch(tensor.device());
  return {tensor.data_ptr(),
          static_cast<std::size_t>(tensor.numel()),
          from_torch(tensor.scalar_type()),
          device};
}

c10::Device device_of(comm::World& world) {
  return to_torch(world.transport().device());
}

}  // namespace tessera
