// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/kernels.h"

#include "tessera/ops/cpu/isa.h"

namespace tessera::ops::cpu {

const Kernels& kernels() {
  switch (isa()) {
    case Isa::Amx:
    case Isa::Avx512Bf16:
      return avx512_bf16_kernels();
    case Isa::Avx512:
      return avx512_kernels();
    case Isa::Avx2:
      return avx2_kernels();
    case Isa::Portable:
      break;
  }
  return portable_kernels();
}

}  // namespace tessera::ops::cpu
