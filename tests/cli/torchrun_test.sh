#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts exhaustive multiprocess
# timeout: 600
# Ranks that the torchrun of torch's wheel starts, on one host and on two: the bits of one host. TORCHRUN names the program
# (default: the one in PATH).   usage: torchrun_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: torchrun_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
torchrun=${TORCHRUN:-$(command -v torchrun)}
if [[ ! -x $torchrun ]]; then
  echo "skipped  there is no torchrun here (pip install torch; or set TORCHRUN)"
  exit 77
fi

configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1}, "gradient_reduction": "each",
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "trainer": {"max_steps": 6}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
JSON
}
train() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"; }
succeeds() { "$@" || { cat "$box"/*.err; return 1; }; }
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null; }

on_one_host() {
  configure
  expect "torchrun starts the ranks" succeeds "$torchrun" --standalone --local-addr=127.0.0.1 --nproc_per_node 4 --no-python \
    "$tessera" train "$box/tiny.json" --set "run.dir=$box/torch"
  expect "four ranks train" succeeds train four -n 4
  expect "the bits are the same" "$tessera" compare "$box/four" "$box/torch"
}

# host RANK: one of two calls of torchrun. Both are on this machine: a variable tells their hosts apart.
host() {
  # shellcheck disable=SC2016  # the shell of the rank expands
  "$torchrun" --nnodes 2 --nproc_per_node 2 --node_rank "$1" --rdzv_backend c10d --rdzv_endpoint "127.0.0.1:$port" --rdzv_id 7 \
    --local_addr 127.0.0.1 --no-python bash -c 'TORCHELASTIC_RUN_ID=host$GROUP_RANK exec "$@"' _ \
    "$tessera" train "$box/tiny.json" --set "run.dir=$box/torch" >"$box/$1.out" 2>"$box/$1.err"
}
on_two_hosts() {
  configure
  local port=$((20000 + RANDOM % 10000))
  host 1 &
  other=$!
  expect "the first host trains" succeeds host 0
  expect "the second one too" wait "$other"
  expect "four ranks train" succeeds train four -n 4
  expect "the bits are the same" "$tessera" compare "$box/four" "$box/torch"
  expect "the layout crosses" grep -qh "between hosts; data travels over gloo" "$box/0.out" "$box/1.out"
}

a_rank_is_lost() {
  configure
  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  "$torchrun" --standalone --local-addr=127.0.0.1 --nproc_per_node 2 --no-python "$tessera" train "$box/tiny.json" --set "run.dir=$box/lost" \
    >"$box/lost.out" 2>"$box/lost.err" &
  job=$!
  expect "it begins" until_true test -s "$box/lost/metrics.jsonl"
  kill -9 "$(pgrep -P "$job" -f "$box/tiny.json" | tail -1)"
  wait "$job"
  expect "torchrun fails, too" test $? != 0
  expect "the rank is named" grep -qE "rank [01] was lost" "$box/lost.err"
  expect "no process is left" until_true none_left
}

claim "torchrun starts the ranks of one host" on_one_host
claim "torchrun starts the ranks of two hosts" on_two_hosts
claim "a lost rank is named, and nothing is left behind" a_rank_is_lost
claims_done
