#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# tessera bench with ranks that are processes.   usage: bench_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: bench_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4},
  "data": {"train": "there_is_no_such_file.txt", "sequence_length": 16},
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
  "trainer": {"max_steps": 12}, "eval": {"every": 5},
  "run": {"dir": "$box/run", "threads_per_rank": 1}
}
JSON
}

the_page_of_a_step() {
  configure
  # -v: small operations, too, whose shares depend on what else the machine does.
  timeout 120 "$tessera" bench step "$box/tiny.json" -n "$1" --steps 2 -v >"$box/out" 2>"$box/err"
  local code=$?
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "the layout" says "layout      $1 rank" "$box/out"
  expect "a row of a product" grep -q '^linear dW  *32 x 32 -> 96 ' "$box/out"
  expect "the whole" grep -q '^the step .* 100.0%$' "$box/out"
  expect "nothing wider than 120 columns" test "$(wc -L <"$box/out")" -le 120
  expect "no run was begun" test ! -e "$box/run"
}

the_json_of_a_step_adds_up() {
  configure
  timeout 120 "$tessera" bench step "$box/tiny.json" --steps 2 --json >"$box/out" 2>"$box/err"
  expect "exit code 0: $(cat "$box/err")" test $? = 0
  python3 - "$box/out" <<'CHECK' || exit 1
import json, sys
page = json.load(open(sys.argv[1]))
parts = sum(row["seconds"] for row in page["operations"]) + page["collectives_s"] + page["between_operations_s"]
assert abs(parts - page["seconds"]) <= 1e-9 * page["seconds"], (parts, page["seconds"])
for row in page["operations"]:
    assert abs(row["share"] * page["seconds"] - row["seconds"]) < 1e-12, row
    assert row["bound"] in ("flops", "memory") and row["of_machine"] >= 0, row
# 2 layers of 12 matrices of 32 x 32, and a table of 256 rows, for 2 steps of 4 samples of 16 tokens.
linear = sum(row["flops_per_s"] * row["seconds"] for row in page["operations"] if row["name"] == "linear")
expected = 2 * (2 * 12 * 32 * 32 + 256 * 32) * 2 * 4 * 16
assert abs(linear - expected) < 1e-6 * expected, (linear, expected)
CHECK
}

a_signal_ends_it() {
  configure
  timeout 120 "$tessera" bench step "$box/tiny.json" -n 2 --steps 100000 --set trainer.max_steps=1000000 \
    >"$box/out" 2>"$box/err" &
  local job=$!
  sleep 4
  kill -s TERM "$(pgrep -P "$job" -x tessera)"
  wait "$job"
  local code=$?
  expect "exit code 143, not $code: $(cat "$box/err")" test "$code" = 143
  expect "no page" test ! -s "$box/out"
}

collectives_between_processes() {
  timeout 120 "$tessera" bench comm -n 2 --sizes 0.25 --repetitions 1 >"$box/out" 2>"$box/err"
  local code=$?
  expect "exit code 0, not $code: $(cat "$box/err")" test "$code" = 0
  expect "a heading, and eight operations in both memories" test "$(wc -l <"$box/out")" = 17
  expect "all-to-all" says "all-to-all" "$box/out"
}

# ranks_of_two_hosts: two processes that meet as Kubernetes starts them, one on each "host".
ranks_of_two_hosts() {
  local port=$((20000 + RANDOM % 10000)) rank
  jobs=()
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$tessera" bench comm "$@" >"$box/$rank.out" 2>"$box/$rank.err" &
    jobs+=($!)
  done
}
collectives_between_hosts() {
  ranks_of_two_hosts --sizes 0.25 --seconds 5
  begin=$(date +%s)
  expect "rank 0 ends well: $(cat "$box/0.err")" wait "${jobs[0]}"
  expect "rank 1, too: $(cat "$box/1.err")" wait "${jobs[1]}"
  expect "it ends in time" test $(($(date +%s) - begin)) -lt 40
  expect "a heading, and eight operations in both memories" test "$(wc -l <"$box/0.out")" = 17
  expect "rank 1 is silent" test ! -s "$box/1.out"
}
a_signal_ends_two_hosts() {
  # These options make the command run for hours if no signal ends it.
  ranks_of_two_hosts --sizes 64 --seconds 80000 --repetitions 10000
  expect "the heading is there at once" until_true says "algorithm GB/s" "$box/0.out"
  sleep 1
  kill -s "$1" "${jobs[$2]}"
  begin=$(date +%s%N)
  wait "${jobs[$2]}"
  local code=$?
  wait "${jobs[1 - $2]}"
  took=$((($(date +%s%N) - begin) / 1000000))
  expect "exit code $3, not $code: $(cat "$box"/*.err)" test "$code" = "$3"
  expect "both have ended within 4 s on a busy machine, not $took ms" test "$took" -lt 4000
  expect "the other one says why" grep -q "stopped by signal" "$box/$((1 - $2)).err"
}

claim "a step's operations are on a page" the_page_of_a_step 1
claim "and those of the first of two ranks" the_page_of_a_step 2
claim "times, shares and arithmetic add up" the_json_of_a_step_adds_up
claim "a signal ends it" a_signal_ends_it
claim "collectives are measured over shared memory" collectives_between_processes
claim "and between hosts" collectives_between_hosts
claim "a signal to rank 0 ends both hosts" a_signal_ends_two_hosts TERM 0 143
claim "a signal to the other rank ends both hosts" a_signal_ends_two_hosts INT 1 130
claims_done
