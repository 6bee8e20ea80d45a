#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# nvcc compiles the CUDA kernels, and the updates without contraction and approximations, on which the CPU's bits depend.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
probe=$(mktemp --suffix=.cu)
printf '__global__ void nothing() {}\n' >"$probe"
nvcc -ptx "$probe" -o "$probe" >/dev/null 2>&1 && works=1 || works=0
rm -f "$probe"
((works)) || { echo "nvcc is not installed, or does not compile"; exit 77; }

compiles() {  # compiles ARCHITECTURE
  local kernels
  for kernels in tessera/ops/cuda/*.cu; do
    nvcc -std=c++20 -I. --extended-lambda --expt-relaxed-constexpr -fmad=false -arch="$1" -ptx "$kernels" -o "$box/kernels.ptx" >"$box/out" 2>&1 ||
      { cat "$box/out"; return 1; }
    expect "no warning for $kernels" test ! -s "$box/out"
    expect "kernels in $kernels" grep -q '\.entry' "$box/kernels.ptx"
    [[ $kernels == */updates.cu ]] || continue
    expect "no fused multiply-add" test "$(grep -cE '\bfma\.' "$box/kernels.ptx")" = 0
    expect "no approximation" test "$(grep -cE '\.(approx|ftz)' "$box/kernels.ptx")" = 0
  done
}

claim "the kernels compile for A100" compiles sm_80
claim "the kernels compile for H100" compiles sm_90
claims_done
