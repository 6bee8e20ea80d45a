// SPDX-License-Identifier: Apache-2.0
// A stand-in for a device with memory of its own, without any hardware.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::test {

/// A device of libtorch (PrivateUse1) whose memory the process may touch within the device's own
/// kernels only: a host that reads or writes it at any other time gets SIGSEGV. Its kernels are the
/// CPU's on copies, so results differ from the CPU's by rounding at most. As on any device,
/// autograd runs its backward on a thread of its own. Registers itself before the program starts.
at::Device guarded_device();

}  // namespace tessera::test
