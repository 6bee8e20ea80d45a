// SPDX-License-Identifier: Apache-2.0
// The kernel variant for this machine, and whether its CPU multiplies 16-bit floats in hardware.
#pragma once

#include <string_view>

namespace tessera::ops {

/// A variant includes the instruction sets of the previous ones. Avx512Bf16 adds conversion to bf16
/// and dot products of bf16, Amx matrix tiles; attention in bf16 uses them.
enum class Isa { Portable, Avx2, Avx512, Avx512Bf16, Amx };

/// The best variant that the CPU supports, or TESSERA_ISA = portable | avx2 | avx512 | avx512_bf16
/// | amx (read once). Throws Error{Config} for any other name and Error{Unsupported} for a variant
/// that this CPU cannot run. All variants add in the same order and agree bit by bit, except for
/// bf16 attention in the last two and for matrix products, which libraries compute.
Isa isa();
std::string_view name(Isa isa);
/// Returns whether this CPU can run the variant. Amx also needs permission for this process, which
/// the function requests from the operating system.
bool runs_here(Isa isa);

/// True if matrix products of bf16 operands run in hardware (AVX512-BF16 or AMX). Always false if
/// TESSERA_ISA selects less than avx512_bf16.
bool native_bf16();
/// True if a bf16 product can be added to an fp32 matrix at hardware speed (Intel: MKL's
/// bf16bf16f32).
bool native_bf16_to_fp32();
/// True if oneDNN's fp32 products are faster than MKL's, which use AVX-512 only on Intel CPUs.
bool onednn_fp32();
/// As native_bf16() for fp16 (AVX512-FP16; oneDNN and MKL's f16f16f32 accumulate its products in
/// fp32).
bool native_fp16();
bool native_fp16_to_fp32();

}  // namespace tessera::ops
