#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 600
# A disk that is full, read-only, over the user's quota, or slow: training continues, reports it, and keeps its
# checkpoints.
# usage: bad_disk_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: bad_disk_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
library=$(mktemp -d)
trap 'rm -rf "$library"' EXIT
${CC:-cc} -shared -fPIC -O1 -o "$library/bad_disk.so" tests/support/bad_disk.c -ldl || exit 1

configure() {
  cat >"$box/tiny.json" <<EOF
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2,
  "run": {"threads_per_rank": 1}, "checkpoint": {"every": 5}
}
EOF
}
# train NAME STEPS [WORDS...]
train() {
  "${bad[@]}" "$tessera" train "$box/tiny.json" -n 2 --set "run.dir=$box/$1" --set "trainer.max_steps=$2" "${@:3}" \
    >"$box/out" 2>"$box/err"
  code=$?
}
last_step() { python3 -c 'import json, sys; print(max(json.loads(line)["step"] for line in open(sys.argv[1])))' "$1"; }
contents() { (cd "$1" && find . -type f | sort | xargs sha256sum); }

# refuses ERRNO WORDS ASYNC
refuses() {
  configure
  bad=()
  train run 4
  expect "a sound checkpoint" test "$code" = 0
  contents "$box/run/checkpoints" >"$box/before"
  bad=(env "BAD_DISK_ERRNO=$1" "LD_PRELOAD=$library/bad_disk.so")
  train run 20 --set "checkpoint.async=$3"
  expect "exit code 9, not $code" test "$code" = 9
  expect "all steps" test "$(last_step "$box/run/metrics.jsonl")" = 20
  expect "what went wrong" says "$2" "$box/err"
  expect "that training goes on" says "training goes on without this checkpoint" "$box/err"
  contents "$box/run/checkpoints" >"$box/after"
  expect "the old checkpoint as it was" cmp "$box/before" "$box/after"
  bad=()
  train run 25
  expect "that it goes on once the disk is well" test "$code" = 0
  expect "a checkpoint" test -e "$box/run/checkpoints/step-00000025/manifest.json"
}

# Every call of the disk takes 0.3 s, so that a save takes many seconds and steps are much faster. Only a save waits for a save.
is_slow() {
  configure
  bad=(env BAD_DISK_MS=300 "LD_PRELOAD=$library/bad_disk.so")
  train run 9 --set checkpoint.every=8
  expect "exit code 0, not $code" test "$code" = 0
  expect "both checkpoints" test -e "$box/run/checkpoints/step-00000008/manifest.json" -a \
    -e "$box/run/checkpoints/step-00000009/manifest.json"
  expect "how long it took and how long training waited" grep -qE \
    'step-00000008 written in [0-9.]+ s, for [0-9.]+ of which training waited' "$box/out" "$box/err"
  python3 - "$box/run/metrics.jsonl" <<'STEPS' || exit 1
import json, sys
took = [row["step_ms"] for row in map(json.loads, open(sys.argv[1])) if row.get("step") == 9 and "step_ms" in row]
if not took or max(took) > 3000:
    sys.exit(f"step 9 waited for the disk: {took} ms")
STEPS
}

claim "a full disk" refuses 28 "no space left on the disk" true
claim "a full disk while training waits" refuses 28 "no space left on the disk" false
claim "a used-up quota" refuses 122 "the disk quota of this user is used up" true
claim "a disk that was mounted read-only" refuses 30 "the file system is mounted read-only" true
claim "a disk that fails" refuses 5 "Input/output error" true
claim "a slow disk" is_slow
claims_done
