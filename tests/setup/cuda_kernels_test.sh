#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# nvcc compiles the CUDA kernels that promise the CPU's bits without contraction and approximations. ./check compiles the others
# with the plugin.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
probe=$(mktemp --suffix=.cu)
printf '__global__ void nothing() {}\n' >"$probe"
nvcc -ptx "$probe" -o "$probe" >/dev/null 2>&1 && works=1 || works=0
rm -f "$probe"
((works)) || { echo "nvcc is not installed, or does not compile"; exit 77; }

compiles() {  # compiles ARCHITECTURE
  local kernels
  for kernels in tessera/ops/cuda/{updates,exact,reduce_parts}.cu; do
    nvcc -std=c++20 -I. --extended-lambda --expt-relaxed-constexpr -fmad=false -arch="$1" -ptx "$kernels" -o "$box/kernels.ptx" >"$box/out" 2>&1 ||
      { cat "$box/out"; return 1; }
    expect "no warning for $kernels" test ! -s "$box/out"
    expect "kernels in $kernels" grep -q '\.entry' "$box/kernels.ptx"
    expect "no fused multiply-add in $kernels" test "$(grep -cE "\bfma\." "$box/kernels.ptx")" = 0
    expect "no approximation" test "$(grep -cE '\.(approx|ftz)' "$box/kernels.ptx")" = 0
  done
}

# Norms add a branch with the bits of dropout; the cross-entropy, in the same file, may use what it likes.
norms_compile() {
  nvcc -std=c++20 -I. --extended-lambda --expt-relaxed-constexpr -fmad=false -arch="$1" -ptx tessera/ops/cuda/rows.cu -o "$box/rows.ptx" >"$box/out" 2>&1 ||
    { cat "$box/out"; return 1; }
  expect "kernels of norms" grep -qE '\.entry .*norm_kernel' "$box/rows.ptx"
  expect "no fused multiply-add in a norm" \
    test "$(awk '/\.entry/ {norm = /norm_/} norm && /[^a-z]fma\./' "$box/rows.ptx" | wc -l)" = 0
}

claim "the kernels with the CPU's bits compile for A100" compiles sm_80
claim "norms compile for A100 without contraction" norms_compile sm_80
claims_done
