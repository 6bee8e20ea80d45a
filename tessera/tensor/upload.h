// SPDX-License-Identifier: Apache-2.0
// Memory of devices: as tensors, and values that the host needs too.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::comm {
struct Span;
}

namespace tessera {

/// Returns the memory of a span as a tensor on its device; no copy.
at::Tensor tensor_of(const comm::Span& span);

/// Returns the values of a tensor of the host on `device`: the tensor itself for the CPU. Otherwise
/// they are copied through pinned memory, and neither the host nor the caller's stream waits for
/// the other. host_values() of the result, and of views of it, is `host` without a copy as long as
/// the result exists; so neither may be changed. Threads: any.
at::Tensor on_device(const at::Tensor& host, c10::Device device);

/// Returns the values of `x` on the host: `x` itself on the CPU, the tensor of which on_device()
/// made it (or a view), or else a copy, for which the host waits. Threads: any.
at::Tensor host_values(const at::Tensor& x);

/// Returns memory of the host to which `device` can copy without making the host wait: pinned
/// memory, or plain memory for the CPU. One dim of `numel` elements.
at::Tensor landing_room(std::int64_t numel, at::ScalarType dtype, c10::Device device);

/// The bytes that pinned memory of `bytes` takes: libtorch rounds them up to a power of two.
std::int64_t pinned_bytes(std::int64_t bytes);

/// Waits until the work of the caller's current stream of `device` is complete; nothing on the CPU.
void wait_for_device(c10::Device device);

}  // namespace tessera
