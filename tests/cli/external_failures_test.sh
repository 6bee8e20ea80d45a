#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Failures around a training: standard streams are closed, the run folder is removed, ranks of a launcher are lost.
# usage: external_failures_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: external_failures_test.sh PROGRAM}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# configure STEPS: writes the configuration.
configure() {
  cat >"$box/tiny.json" <<EOF2
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 4, "trainer": {"max_steps": $1}, "steps_per_print": 1,
  "run": {"dir": "$box/run", "threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOF2
}
train() { timeout 60 "$tessera" train "$box/tiny.json" -n 2; }
steps() { wc -l 2>/dev/null <"$box/run/metrics.jsonl" || echo 0; }
stepped() { (($(steps) > 2)); }
finished() {
  expect "exit code 0, not $1" test "$1" = 0
  expect "all steps" test "$(steps)" = 30
  expect "the state is in status.json" says '"state": "finished"' "$box/run/status.json"
  expect "one line in the lock: $(cat "$box/run/lock")" test "$(wc -l <"$box/run/lock")" -le 1
}

closed_streams_do_not_become_files() {
  configure 30
  train <&- >&-
  finished $?
  rm -r "$box/run"
  train <&- >&- 2>&-
  finished $?
}
a_reader_may_exit() {
  configure 30
  train | head -1 >"$box/out"
  finished "${PIPESTATUS[0]}"
}

a_command_ends_with_its_reader() {
  "$tessera" bench comm -n 2 --sizes 0.25 --repetitions 1 2>"$box/err" | true
  local code=${PIPESTATUS[0]}
  expect "exit code 141, not $code" test "$code" = 141
  expect "no message: $(cat "$box/err")" test ! -s "$box/err"
}

# status TEXT...: checks that status.json of the run contains each text.
status() {
  local word
  for word in "$@"; do expect "$word" says "$word" "$box/run/status.json"; done
}
the_exit_code_survives_a_removed_folder() {
  configure 1000000
  "$tessera" train "$box/tiny.json" -n 2 >"$box/out" 2>"$box/err" &
  local job=$!
  expect "it trains: $(cat "$box/err")" until_true stepped
  rm -r "$box/run"
  pkill -9 -n -P "$job"
  wait "$job"
  local code=$?
  expect "exit code 6, not $code: $(cat "$box/err")" test "$code" = 6
  expect "the message names the lost rank" says "rank 1 was lost: signal 9 (SIGKILL)" "$box/err"
}
# a_launcher_loses RANK: kills that rank; the other one reports it, and status.json records it.
a_launcher_loses() {
  configure 1000000
  local rank pids=() other=$((1 - $1))
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 9999)) \
      TORCHELASTIC_RUN_ID=$$-$1 "$tessera" train "$box/tiny.json" >"$box/out$rank" 2>"$box/err$rank" &
    pids+=($!)
  done
  expect "it trains: $(cat "$box"/err?)" until_true stepped
  kill -9 "${pids[$1]}"
  wait "${pids[$other]}"
  local code=$?
  wait
  expect "exit code 6, not $code: $(cat "$box/err$other")" test "$code" = 6
  expect "the message names the lost rank" says "rank $1 was lost" "$box/err$other"
  status '"state": "failed"' '"exit_code": 6' "rank $1 was lost"
}

# A stack that ends within a kernel would be a signal without a message.
a_small_stack_is_refused() {
  (ulimit -s 64 && "$tessera" --version) >"$box/out" 2>"$box/err"
  expect "exit code 8" test $? -eq 8
  expect "the limit" says "the stack is limited to 64 KiB" "$box/err"
  expect "the command that raises it" says "ulimit -s" "$box/err"
}

a_small_limit_of_memory_is_named() {
  (ulimit -v 300000 && "$tessera" version) >"$box/out" 2>"$box/err"
  local code=$?
  expect "exit code 5, not $code: $(cat "$box/err")" test "$code" = 5
  expect "the limit" says "limited to 292 MiB" "$box/err"
  expect "the command that raises it" says "ulimit -v" "$box/err"
}
a_removed_current_folder_is_named() {
  mkdir "$box/gone"
  (cd "$box/gone" && rmdir "$box/gone" && "$tessera" version) >"$box/out" 2>"$box/err"
  local code=$?
  expect "exit code 8, not $code" test "$code" = 8
  expect "what is wrong: $(cat "$box/err")" says "the current folder cannot be determined" "$box/err"
  expect "two lines" test "$(wc -l <"$box/err")" = 2
}

claim "closed standard streams are not reused for files of the run" closed_streams_do_not_become_files
claim "training continues when the reader of its output exits" a_reader_may_exit
claim "other commands end when the reader of their output exits" a_command_ends_with_its_reader
claim "the exit code is correct after the run folder was removed" the_exit_code_survives_a_removed_folder
claim "status.json records the loss of a launcher's first rank" a_launcher_loses 0
claim "status.json records the loss of a launcher's last rank" a_launcher_loses 1
claim "a stack that is too small is refused at the start" a_small_stack_is_refused
claim "a limit of memory that is too small is named" a_small_limit_of_memory_is_named
claim "a current folder that was removed is named" a_removed_current_folder_is_named
claims_done
