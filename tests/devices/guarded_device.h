// SPDX-License-Identifier: Apache-2.0
// A stand-in for a device with memory of its own, without any hardware.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::test {

/// A device of libtorch (PrivateUse1) whose memory the process may access only within the device's
/// own kernels: a host that reads or writes it at any other time gets SIGSEGV. Its kernels are the
/// CPU's on copies, so results differ from the CPU's at most by rounding. As on any device,
/// autograd runs its backward on a separate thread. The device registers itself before main()
/// starts.
at::Device guarded_device();

}  // namespace tessera::test
