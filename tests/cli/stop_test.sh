#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast multiprocess
# A request to stop while text is tokenized, before any rank exists.   usage: stop_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: stop_test.sh PROGRAM}

# Text that takes many seconds to tokenize: no word occurs twice.
much_text() { head -c 40000000 /dev/urandom | base64 >"$box/much.txt"; }
configure() {
  export TESSERA_CACHE=$box/cache
  cat >"$box/c.json" <<EOF
{"data": {"train": "$box/much.txt", "sequence_length": 64}, "tokenizer": {"type": "gpt2"}, "train_batch_size": 4,
 "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 4}, "trainer": {"max_steps": 1}, "run": {"dir": "$box/run"}}
EOF
}
# start NAME COMMAND...: runs it in the background, as a process group without a terminal; its number goes to $job.
start() {
  "$tessera" "${@:2}" >"$box/$1.out" 2>"$box/$1.err" &
  job=$!
}
half_made() { compgen -G "$box/cache/tokens/*.tmp-*" >/dev/null; }
# stop SIGNAL: sends the signal and waits; the exit code goes to $code, the milliseconds to $took.
stop() {
  local begin=${EPOCHREALTIME/./}
  kill -s "$1" "$job"
  wait "$job"
  code=$?
  took=$(((${EPOCHREALTIME/./} - begin) / 1000))
}

# nothing_stays SIGNAL CODE: no partial file remains.
nothing_stays() {
  much_text
  configure
  start run train "$box/c.json"
  expect "it began to tokenize" until_true half_made
  stop "$1"
  expect "exit code $2, not $code" test "$code" = "$2"
  expect "within 3 s, not $took ms" test "$took" -lt 3000
  expect "a sentence" says "stopped by signal" "$box/run.err"
  expect "its name" says "(SIG$1)" "$box/run.err"
  expect "no entry and no lock in the cache" test -z "$(find "$box/cache" -mindepth 2)"
  expect "no run folder" test ! -e "$box/run"
}
sigterm_leaves_nothing() { nothing_stays TERM 143; }
sigint_leaves_nothing() { nothing_stays INT 130; }

whoever_waits_stops_too() {
  much_text
  configure
  start first train "$box/c.json"
  local first=$job
  expect "the first began to tokenize" until_true half_made
  kill -STOP "$first"  # so that it does not end
  start second train "$box/c.json" -v --set "run.dir=$box/run2"
  expect "the second waits" until_true grep -q "waiting for" "$box/second.err"
  stop TERM
  expect "exit code 143, not $code" test "$code" = 143
  expect "within 3 s, not $took ms" test "$took" -lt 3000
  expect "the first goes on" kill -0 "$first"
  expect "its work is still there" half_made
  kill -CONT "$first"
  job=$first
  stop TERM
  expect "exit code 143, not $code" test "$code" = 143
}

tokenize_stops_too() {
  much_text
  configure
  start run tokenize "$box/much.txt" --tokenizer gpt2 --out "$box/made"
  expect "it began" until_true compgen -G "$box/made.bin.tmp-*"
  stop TERM
  expect "exit code 143, not $code" test "$code" = 143
  expect "no file" test -z "$(compgen -G "$box/made*")"
}

claim "SIGTERM while tokenizing: 143, a sentence, nothing half-made" sigterm_leaves_nothing
claim "SIGINT while tokenizing: 130, a sentence, nothing half-made" sigint_leaves_nothing
claim "who waits for another's tokens stops too" whoever_waits_stops_too
claim "tessera tokenize stops too" tokenize_stops_too
claims_done
