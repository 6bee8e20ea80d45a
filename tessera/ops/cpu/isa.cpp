// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/isa.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::ops {
namespace {

/// Features that __builtin_cpu_supports of clang 14 (used by clang-tidy) cannot name.
struct Features {
  bool f16c = false, avx512_fp16 = false, amx_bf16 = false, amx_tile = false;
};
Features features() {
  Features found;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) found.f16c = (ecx & bit_F16C) != 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    found.amx_bf16 = (edx >> 22 & 1U) != 0;
    found.amx_tile = (edx >> 24 & 1U) != 0;
    found.avx512_fp16 = (edx >> 23 & 1U) != 0;
  }
  return found;
}

/// Linux keeps the tile state only for processes that request it (Documentation/arch/x86/xstate).
bool granted_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa best() {
  for (const Isa isa : {Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2}) {
    if (runs_here(isa)) return isa;
  }
  return Isa::Portable;
}

Isa choose() {
  __builtin_cpu_init();
  const char* asked = std::getenv("TESSERA_ISA");
  if (asked == nullptr || *asked == '\0') return best();
  const std::vector<std::string> names = {"portable", "avx2", "avx512", "avx512_bf16", "amx"};
  for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx}) {
    if (name(isa) != asked) continue;
    TESSERA_REQUIRE(runs_here(isa),
                    Unsupported,
                    "TESSERA_ISA=" + std::string(asked) + ", but this CPU does not have it",
                    "unset TESSERA_ISA, or TESSERA_ISA=" + std::string(name(best())));
    return isa;
  }
  throw Error(Error::Kind::Config,
              "TESSERA_ISA=" + std::string(asked) + " is not known",
              text::suggestion(asked, names));
}

}  // namespace

bool runs_here(Isa isa) {
  switch (isa) {
    case Isa::Portable:
      return true;
    case Isa::Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && features().f16c;
    case Isa::Avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case Isa::Avx512Bf16:
      return runs_here(Isa::Avx512) && __builtin_cpu_supports("avx512bf16");
    case Isa::Amx:
      return runs_here(Isa::Avx512Bf16) && features().amx_tile && features().amx_bf16 &&
             granted_tiles();
  }
  return false;
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

std::string_view name(Isa isa) {
  switch (isa) {
    case Isa::Portable:
      return "portable";
    case Isa::Avx2:
      return "avx2";
    case Isa::Avx512:
      return "avx512";
    case Isa::Avx512Bf16:
      return "avx512_bf16";
    case Isa::Amx:
      return "amx";
  }
  return "?";
}

bool native_bf16() {
  return isa() >= Isa::Avx512Bf16;
}

bool native_bf16_to_fp32() {
  return native_bf16() && __builtin_cpu_is("intel");
}

bool onednn_fp32() {
  return isa() >= Isa::Avx512 && !__builtin_cpu_is("intel");
}

bool native_fp16() {
  static const bool native = isa() >= Isa::Avx512 && features().avx512_fp16;
  return native;
}

bool native_fp16_to_fp32() {
  return native_fp16() && __builtin_cpu_is("intel");
}

}  // namespace tessera::ops
