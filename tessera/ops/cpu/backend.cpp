// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/backend.h"

namespace tessera::ops::cpu {
namespace {

const CpuBackend kBackend;
TESSERA_BACKEND(cpu, kBackend);
const BatchInvariantBackend kInvariant;
TESSERA_BACKEND(batch_invariant, kInvariant);

}  // namespace

bool CpuBackend::runs_on(c10::DeviceType type) const {
  return type == c10::DeviceType::CPU;
}

}  // namespace tessera::ops::cpu
