// SPDX-License-Identifier: Apache-2.0
// The tables of kernels that this CPU can run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/kernels.h"

namespace tessera::ops {

struct Variant {
  std::string name;
  const cpu::Kernels* kernels;
};

/// The portable one first.
inline std::vector<Variant> variants() {
  std::vector<Variant> out;
  for (const auto& [isa, kernels] : {std::pair{Isa::Portable, &cpu::portable_kernels},
                                     std::pair{Isa::Avx2, &cpu::avx2_kernels},
                                     std::pair{Isa::Avx512, &cpu::avx512_kernels},
                                     std::pair{Isa::Avx512Bf16, &cpu::avx512_bf16_kernels}}) {
    if (runs_here(isa)) out.push_back({std::string(name(isa)), &kernels()});
  }
  return out;
}

}  // namespace tessera::ops
