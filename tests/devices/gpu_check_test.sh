#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 900
# The rehearsal of tools/gpu_check.sh on simulated GPUs, in its short form.   usage: gpu_check_test.sh PROGRAM FOLDER
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
build=$(cd "$(dirname "$1")/.." && pwd)
for library in libtorch_cuda.so libtessera_cuda.so libnvml.so; do
  [[ -e $2/$library ]] || { echo "the simulated library $library is not built"; exit 77; }
done

rehearses() {
  OUT=$box tools/gpu_check.sh --rehearse --short "$build" >"$box/out" 2>&1 || { cat "$box/out"; exit 1; }
  local step
  for step in "the program, its GPUs and libraries" "their losses agree" "its losses have the same bits" "goes on from its checkpoint"; do
    expect "$step in the table" grep -qE "^$step +[0-9]+ s  ok$" "$box/out"
  done
  expect "tokens per second with the share of the peak" grep -qE '^    [0-9.e+]+ tokens/s \(MFU' "$box/out"
}
counts_a_failure() {
  local code=0
  # A simulated device that fails: every step on it does, and the table says so.
  SIMULATED_GPU_FAILS="out of memory" OUT=$box tools/gpu_check.sh measure --rehearse --short "$build" >"$box/out" 2>&1 || code=$?
  expect "exit code 1, not $code" test "$code" = 1
  expect "the step failed" grep -qE '^nano +[0-9]+ s  FAILED \(8\)$' "$box/out"
}
unknown_words() {
  tools/gpu_check.sh --now >"$box/out" 2>&1
  expect "exit code 2" test $? = 2
  tools/gpu_check.sh prove /nowhere >"$box/out" 2>&1
  expect "exit code 8" test $? = 8
  expect "the remedy" says "fix: tools/build.sh cuda" "$box/out"
}
claim "all steps of the short form succeed" rehearses
claim "a step that fails is in the table, and in the exit code" counts_a_failure
claim "an unknown option and a missing folder are refused" unknown_words
claims_done
