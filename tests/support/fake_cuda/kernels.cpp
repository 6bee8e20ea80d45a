// SPDX-License-Identifier: Apache-2.0
// A simulated libtessera_cuda.so: the plugin's own sources, with kernels that the emulation runs in
// the memory of the simulated libtorch_cuda.so.
#include "devices/simulated_gpu.h"
#include "ops/cuda/emulation.h"

namespace tessera::test {
namespace {

const bool kSet = [] {
  emulation::set_surroundings(with_memory);
  return true;
}();

}  // namespace
}  // namespace tessera::test
