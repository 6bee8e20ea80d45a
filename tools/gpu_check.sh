#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves and measures on a host with a GPU what no test can without one.   usage: tools/gpu_check.sh [--rehearse] [BUILD]
#
# BUILD is the build folder, build/release by default. The steps, with their limits in seconds, take at most ten minutes; each prints
# its result at once, and the table is last. --rehearse runs the same steps on simulated GPUs and the CPU, so that the script itself is
# tried where there is no GPU; it measures nothing. The exit code is 1 if a step failed.
#
# On the host: libtorch_cuda.so of torch 2.11 with CUDA 13, in the folder that TESSERA_CUDA names (docs/gpu.md).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
device=cuda
if [[ ${1:-} == --rehearse ]]; then
  device=cpu
  shift
fi
build=${1:-build/release}
out=${OUT:-$(mktemp -d)}
table=()
failed=0

# step NAME LIMIT COMMAND...: runs the command and keeps its outcome and seconds for the table.
step() {
  local name=$1 limit=$2 begin=$SECONDS rc
  shift 2
  echo "== $name"
  timeout "$limit" bash -c '"$@"' step "$@" 2>&1 | tail -n 40
  rc=${PIPESTATUS[0]}
  ((rc == 0)) || failed=1
  table+=("$(printf '%-40s %4d s  %s' "$name" $((SECONDS - begin)) "$( ((rc == 0)) && echo ok || echo "FAILED ($rc)")")")
}

export device build out
tests() { TESSERA_TEST_GPU=$device "$build/bin/devices_test" --gtest_brief=1 "$@"; }
train() { "$build/bin/tessera" train --model nano --data examples/data/shakespeare.txt --set run.dir="$out/$1" "${@:2}"; }
losses() { grep -o '"loss": *[0-9.e-]*' "$out/$1/metrics.jsonl" | head -n 20; }
# near A B: the 20th losses of two runs differ by less than 0.2 percent.
near() {
  awk -v a="$(losses "$1" | tail -n 1 | grep -o '[0-9.e-]*$')" -v b="$(losses "$2" | tail -n 1 | grep -o '[0-9.e-]*$')" \
    'BEGIN { d = a > b ? a - b : b - a; print a, b; exit !(a > 0 && d < 0.002 * b) }'
}
# equal A B: the first 20 losses of two runs are the same.
equal() { diff <(losses "$1") <(losses "$2") && [[ -n $(losses "$1") ]]; }
export -f tests train losses near equal

[[ $device == cpu ]] || step "the driver" 10 nvidia-smi
step "the program and its libraries" 20 "$build/bin/tessera" report
step "every family, feature and layout" 240 tests --gtest_filter='*Families*:*GpuTraining*'
step "generation and reinforcement learning" 60 tests --gtest_filter='*GpuModels*:*GpuPolicies*'
step "a training on the CPU" 60 train cpu --device cpu --set trainer.max_steps=20
step "the same on the device" 60 train gpu --device "$device" --set trainer.max_steps=20
step "their losses agree" 5 near gpu cpu
step "again, from its checkpoint on the CPU" 60 train gpu --device cpu --set trainer.max_steps=25
step "the same on the device once more" 60 train gpu2 --device "$device" --set trainer.max_steps=20
step "its losses have the same bits" 5 equal gpu gpu2
if [[ $device != cpu ]]; then
  step "tokens per second, GPT-2 of 124M, bf16" 120 "$build/bin/tessera" train --model gpt2-small --data examples/data/shakespeare.txt \
    --device cuda --bf16 --set data.sequence_length=1024 --set trainer.max_steps=15 --set run.dir="$out/speed"
fi
printf '\n'
printf '%s\n' "${table[@]}"
exit "$failed"
