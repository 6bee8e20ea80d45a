// SPDX-License-Identifier: Apache-2.0
// A world whose tensors are on a simulated GPU, on top of any world of the host.
#pragma once

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "devices/simulated_gpu.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tessera/comm/world.h"
#include "tessera/memory/device.h"
#include "tessera/tensor/dtype.h"
#include "tessera/transports/nccl.h"
#include "tessera/transports/staged.h"

namespace tessera::test {

/// True if the variable TESSERA_TEST_GPU is "cuda": the tests then use GPU 0 of this host, whose
/// kernels round differently, instead of simulated ones (tools/gpu_check.sh).
inline bool tests_real_gpu() {
  const char* const asked = std::getenv("TESSERA_TEST_GPU");
  return asked != nullptr && std::string_view(asked) == "cuda";
}

/// The GPU of a rank, as the current device of the calling thread.
inline at::Device enter_gpu(int rank) {
  if (tests_real_gpu()) {
    const Device device = memory::device_of_rank("cuda", 0, 1);
    memory::device_entry(device.kind).enter(device);
    return to_torch(device);
  }
  const at::Device device = simulated_gpu(rank % kSimulatedGpus);
  c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  return device;
}

/// Makes a world with the rank of `host`, which must outlive the result, and memory on a GPU.
/// `exchange` makes the transport of the GPU's memory from that of the host.
template <class Exchange>
std::unique_ptr<comm::World> world_on_gpu_with(comm::World& host, Exchange exchange) {
  const at::Device device = enter_gpu(host.rank());
  const std::shared_ptr<comm::Transport> of_host(&host.host_transport(), [](comm::Transport*) {});
  const std::shared_ptr<ControlPage> control(&host.control(), [](ControlPage*) {});
  auto world = std::make_unique<comm::World>(
      host.rank(), host.mesh(), of_host, exchange(of_host, from_torch(device)), control);
  world->set_host(host.host());
  return world;
}

/// GPUs that exchange data through the host.
inline std::unique_ptr<comm::World> world_on_gpu(comm::World& host) {
  return world_on_gpu_with(host, transports::make_staged_transport);
}

/// GPUs that exchange data by `nccl`.
inline std::unique_ptr<comm::World> world_with_nccl(comm::World& host,
                                                    const transports::NcclApi& nccl) {
  return world_on_gpu_with(host, [&](std::shared_ptr<comm::Transport> of_host, Device device) {
    return transports::make_nccl_transport(
        nccl, std::move(of_host), device, {host.rank(), &host.control()});
  });
}

}  // namespace tessera::test
