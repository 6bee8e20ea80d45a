// SPDX-License-Identifier: Apache-2.0
// Which body of our kernels runs on this machine, and whether its CPU multiplies 16-bit floats
// by itself.
#pragma once

#include <string_view>

namespace tessera::ops {

/// Each has what stands before it. Avx512Bf16: AVX-512 with rounding to bf16 and dot products of
/// it, of which attention of bf16 is made; Amx: matrix tiles, of which it is made there.
enum class Isa { Portable, Avx2, Avx512, Avx512Bf16, Amx };

/// The best body that the CPU has, or TESSERA_ISA = portable | avx2 | avx512 | avx512_bf16 | amx
/// (read once). Error{Config} for another word, Error{Unsupported} for a body that this CPU cannot
/// run. Another body is another order of no sum: kernels agree to the bit, but for attention of
/// bf16 by the last two and matrix products, which are the libraries'.
Isa isa();
std::string_view name(Isa isa);
/// Whether this CPU can run the body. Of Amx: also whether the kernel, which is asked for it, lets
/// this process.
bool runs_here(Isa isa);

/// True where matrix products of bf16 operands are done in hardware (AVX512-BF16 or AMX). False
/// whenever TESSERA_ISA asks for less than avx512_bf16.
bool native_bf16();
/// True where a bf16 product can be added to an fp32 matrix at hardware speed (Intel: MKL's
/// bf16bf16f32).
bool native_bf16_to_fp32();
/// True where oneDNN's products of fp32 are faster than MKL's, which use AVX-512 on Intel's CPUs
/// alone.
bool onednn_fp32();
/// As native_bf16() for fp16 (AVX512-FP16; its products are added up in fp32 there, by oneDNN and
/// by MKL's f16f16f32).
bool native_fp16();
bool native_fp16_to_fp32();

}  // namespace tessera::ops
