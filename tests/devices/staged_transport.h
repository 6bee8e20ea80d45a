// SPDX-License-Identifier: Apache-2.0
// A world whose tensors are on a device, on top of any world of the host.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"

namespace tessera::test {

/// Makes a world with the rank of `host`, which must outlive the result, and memory on `device`.
/// Collectives on memory of the device copy it to the host, run there, and copy the result back;
/// they are complete when posted. Messages between two ranks are not supported.
std::unique_ptr<comm::World> world_on(at::Device device, comm::World& host);

}  // namespace tessera::test
