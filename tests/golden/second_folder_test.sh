#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# The golden tests read the folder that TESSERA_GOLDEN names, every time they run.   usage: second_folder_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=${1:?usage: second_folder_test.sh PROGRAM}
reference=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/reference

# Runs the tests on the folder $1; writes the output to $box/out and the exit code to $code.
run_on() { TESSERA_GOLDEN=$1 "$program" --gtest_brief=1 "${@:2}" >"$box/out" 2>&1; code=$?; }

# The tests that train models take most of the time and are left out. That they read the folder is seen below, where it is missing.
a_copy_passes() {
  cp -r "$reference" "$box/other"
  run_on "$box/other" --gtest_filter='-GoldenModels.*'
  expect "exit code 0, not $code: $(tail -5 "$box/out")" test "$code" = 0
  expect "tests were run" grep -Eq '[1-9][0-9]* tests' "$box/out"
}

# Proves that the copy is read, and not the repository's own folder.
another_answer_fails() {
  cp -r "$reference" "$box/other"
  sed -i -E 's/"initial": [0-9.e+-]+/"initial": 7.0/' "$box"/other/sched/*.json
  run_on "$box/other" --gtest_filter='GoldenSched.*'
  expect "a failure" test "$code" != 0
  expect "in the schedules" says "FAILED" "$box/out"
}

# Other programs' checkpoints are recognized by the contents of their folders, not by the folders' names.
other_checkpoints_are_read() {
  cp -r "$reference" "$box/other"
  chmod -R u+w "$box/other"
  mv "$box/other/interop/torch_tutorial" "$box/other/interop/a_loop"
  mv "$box/other/interop/deepspeed_z3_fp32" "$box/other/interop/sharded"
  mv "$box/other/interop/bin_zip" "$box/other/interop/zipped"
  local filter='GoldenInterop.*-GoldenInterop.TrainingGoesOn*' case
  run_on "$box/other" --gtest_filter="$filter"
  expect "exit code 0, not $code: $(tail -5 "$box/out")" test "$code" = 0
  for case in a_loop sharded zipped; do
    cp "$box/other/interop/$case/expected.safetensors" "$box/kept"
    truncate -s -4 "$box/other/interop/$case/expected.safetensors"
    printf '?!?!' >>"$box/other/interop/$case/expected.safetensors"
    run_on "$box/other" --gtest_filter="$filter"
    expect "a failure for $case" test "$code" != 0
    expect "it is named" says "$case" "$box/out"
    cp "$box/kept" "$box/other/interop/$case/expected.safetensors"
  done
}

nothing_there_fails() {
  mkdir "$box/empty"
  run_on "$box/absent" --gtest_filter='GoldenSched.*'
  expect "a failure" test "$code" != 0
  local suite kind
  while read -r suite kind; do
    mkdir -p "$box/empty/$kind"
    run_on "$box/empty" --gtest_filter="$suite.*"
    expect "a failure without $kind" test "$code" != 0
    expect "the folder is named" says "$box/empty/$kind" "$box/out"
  done <<'END'
GoldenModels models
GoldenModels packed
GoldenOptim optim
GoldenSched sched
GoldenTokenizers tokenizers
END
  for suite in Interop LossScaler; do
    run_on "$box/empty" --gtest_filter="Golden$suite.*"
    expect "a failure without $suite" test "$code" != 0
  done
}

claim "a copy in another folder passes" a_copy_passes
claim "another answer there fails" another_answer_fails
claim "checkpoints of others there are read, whatever they are called" other_checkpoints_are_read
claim "a folder without cases fails" nothing_there_fails
claims_done
