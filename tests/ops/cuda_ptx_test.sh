#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# Kernels that promise the CPU's bits, as nvcc compiled them to PTX, have in the emulation the bits that they have when the C++
# compiler compiled them: updates by all rules, dropout, rounding, sums, reductions, rotary positions and packed numbers.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/cuda_check.sh"
ptx=$root/tests/ops/cuda/ptx
to_ptx() { nvcc -std=c++20 -I"$root" --extended-lambda --expt-relaxed-constexpr -arch=sm_80 -ptx "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '__global__ void nothing() {}\n' >"$work/probe.cu"
to_ptx "$work/probe.cu" -o "$work/probe.ptx" >/dev/null 2>&1 || { echo "nvcc is not installed, or does not compile"; exit 77; }
# Activations use approximations, and no other test expects bits of them.
translate() { python3 "$ptx/ptx_to_cpp.py" --without 'start_(activate|gated)' "$@"; }
exact=(updates pointwise exact reduce_parts)
flags=(-O0 -DTESSERA_EMULATION_PTX)
for name in "${exact[@]}"; do
  to_ptx -fmad=false "$kernel_folder/$name.cu" -o "$work/$name.ptx" || exit 1
  compile_kernel "$kernel_folder/$name.cu" "$work/$name.o" "${flags[@]}" || exit 1
done
compile_kernel "$root/tests/ops/cuda/emulation.cpp" "$work/emulation.o" "${flags[@]}" &&
  compile_kernel "$ptx/check.cpp" "$work/check.o" "${flags[@]}" || exit 1

run() {  # run ARGUMENT PTX...: the check with these kernels
  translate "${@:2}" >"$box/kernels.cpp" && compile_kernel "$box/kernels.cpp" "$box/kernels.o" "${flags[@]}" &&
    "${CXX:-c++}" "$work"/*.o "$box/kernels.o" -o "$box/check" || exit 2
  # shellcheck disable=SC2086  # nothing, or one word
  "$box/check" $1 >"$box/out" 2>&1
}
same_bits() {
  run "" "$work"/{updates,pointwise,exact,reduce_parts}.ptx || { cat "$box/out"; exit 1; }
  cat "$box/out"
}
contraction_is_found() {
  to_ptx "$kernel_folder/updates.cu" -o "$box/updates.ptx" || exit 1
  local code=0
  run updates "$box/updates.ptx" || code=$?
  expect "exit code 1, not $code" test "$code" = 1
  expect "AdamW differs" says "AdamW with working copy" "$box/out"
}
unknown_instruction() {
  sed 's/sqrt\.rn\.f32/sqrt.approx.f32/' "$work/updates.ptx" >"$box/updates.ptx"
  translate "$box/updates.ptx" >/dev/null 2>"$box/out"
  expect "it ends" test $? -ne 0
  expect "the reason" says "sqrt.approx.f32 is an approximation" "$box/out"
}
claim "nvcc's kernels have the bits of the C++ compiler's" same_bits
claim "kernels with fused multiply-adds do not" contraction_is_found
claim "an approximation is refused" unknown_instruction
claims_done
