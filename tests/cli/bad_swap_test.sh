#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 600
# A disk on which states, gradients, weights and activations rest fails, is full or slow, loses a part of a write, or the program is
# killed: the run ends with an error that names the folder, the last checkpoint stays, and the training goes on from it with
# the bits of an undisturbed one.
# usage: bad_swap_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: bad_swap_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
shared=$(mktemp -d)
trap 'rm -rf "$shared"' EXIT
${CC:-cc} -shared -fPIC -O1 -o "$shared/bad_disk.so" tests/support/bad_disk.c -ldl || exit 1
steps=12
export TESSERA_DISK_IO=threads  # whose calls a library can take the place of

configure() {
  mkdir -p "$1/swap"
  cat >"$1/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "trainer": {"max_steps": $steps},
  "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 4096,
    "offload_optimizer": {"device": "nvme", "nvme_path": "$1/swap", "gradients": true},
    "offload_param": {"device": "nvme", "nvme_path": "$1/swap"}},
  "activation_checkpointing": {"granularity": "full", "offload": {"device": "nvme", "nvme_path": "$1/swap"}},
  "aio": {"block_size": 4096},
  "run": {"threads_per_rank": 1, "dir": "$1/run"}, "checkpoint": {"every": 4}
}
JSON
}
# in_memory NAME FOLDER: the same training without the disk.
memory=(--set zero_optimization.offload_optimizer.device=none --set zero_optimization.offload_param.device=none
  --set activation_checkpointing.offload.device=none)
configure "$shared"
"$tessera" train "$shared/tiny.json" -n 2 "${memory[@]}" >"$shared/out" 2>&1 || { cat "$shared/out"; exit 1; }

# goes_on: the run continues on a sound disk and ends as the undisturbed one.
goes_on() {
  "$tessera" train "$box/tiny.json" -n 2 >"$box/again" 2>&1 || { cat "$box/again"; exit 1; }
  "$tessera" compare "$shared/run" "$box/run" >"$box/compared" 2>&1 || { cat "$box/compared"; exit 1; }
  expect "nothing left in the folder" test -z "$(ls -A "$box/swap")"
}

# fails WHAT AFTER WORDS...: the run ends with an error that has all the words, and can go on.
fails() {
  configure "$box"
  env "BAD_SWAP=$1" "BAD_SWAP_AFTER=$2" "LD_PRELOAD=$shared/bad_disk.so" \
    "$tessera" train "$box/tiny.json" -n 2 >"$box/out" 2>"$box/err"
  code=$?
  cat "$box/err"
  expect "exit code 8, not $code" test "$code" = 8
  expect "the folder" says "$box/swap" "$box/err"
  for word in "${@:3}"; do
    expect "the words" says "$word" "$box/err"
  done
  goes_on
}

is_slow() {
  configure "$box"
  env BAD_SWAP=slow "LD_PRELOAD=$shared/bad_disk.so" "$tessera" train "$box/tiny.json" -n 2 >"$box/out" 2>"$box/err"
  expect "exit code 0" test $? = 0
  "$tessera" compare "$shared/run" "$box/run" || exit 1
  expect "the waits in the metrics" grep -q '"disk_ms":[1-9]' "$box/run/metrics.jsonl"
}

is_killed() {
  configure "$box"
  setsid env BAD_SWAP=slow "LD_PRELOAD=$shared/bad_disk.so" "$tessera" train "$box/tiny.json" -n 2 >"$box/out" 2>&1 &
  local job=$!
  until_true grep -q '"step":6' "$box/run/metrics.jsonl"
  kill -9 -- "-$job"
  wait "$job" 2>/dev/null
  expect "nothing left in the folder" test -z "$(ls -A "$box/swap")"
  goes_on
}

# An error of io_uring itself fails what is under way, and does not let the program wait for ever.
refuses_transfers() {
  if ! grep -q io_uring_submit_and_wait "$(ldd "$tessera" | awk '/libtessera/ {print $3}')" "$tessera" 2>/dev/null; then
    echo "skipped: this build has no io_uring"
    return
  fi
  configure "$box"
  env -u TESSERA_DISK_IO BAD_RING=5 "BAD_RING_AFTER=$1" "LD_PRELOAD=$shared/bad_disk.so" \
    timeout 120 "$tessera" train "$box/tiny.json" -n 2 >"$box/out" 2>"$box/err"
  code=$?
  cat "$box/err"
  expect "exit code 8, not $code" test "$code" = 8
  expect "the folder" says "$box/swap" "$box/err"
  expect "the error" says "Input/output error" "$box/err"
  goes_on
}

claim "a disk that fails to write" fails 5 1500 "Input/output error" "write" "check the disk"
claim "a disk that fails to read" fails read 1500 "Input/output error" "read" "check the disk"
claim "a disk that becomes full" fails 28 1500 "No space left on device" "free space in"
claim "a disk without room at the start" fails reserve 0 "No space left on device" "reserve" "free space in"
claim "a write of which half is lost" fails torn 1500 "checksum" "last checkpoint"
claim "transfers that io_uring refuses" refuses_transfers 300
claim "transfers that io_uring refuses from the start" refuses_transfers 1
claim "a slow disk" is_slow
claim "a program that is killed" is_killed
claims_done
