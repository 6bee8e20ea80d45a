#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# timeout: 600
# A job goes on by itself after a rank or a host was lost, and gives the bits of one that was never disturbed. The hosts
# are "hosts" behind a stand-in for ssh, which refuses a host that is down.   usage: survive_test.sh PROGRAM [whole]
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
tessera=$(realpath "${1:?usage: survive_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
  "trainer": {"max_steps": ${1:-1500}}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": ${2:-50}, "keep": 100}
}
JSON
  stand_in_for_ssh "$box/bin"
}
undisturbed() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/one" "$@" >"$box/one.out" 2>"$box/one.err"; }
# start MORE...: a job in the background, as a process group.
start() {
  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/run" "$@" >"$box/run.out" 2>"$box/run.err" &
  job=$!
}
# after_step N: the run has come that far, or has ended.
after_step() { until_true reached "$1"; }
reached() { [[ $(tail -1 "$box/run/metrics.jsonl" 2>/dev/null) =~ \"step\":([0-9]+) ]] && ((BASH_REMATCH[1] >= $1)); }
agents() { pgrep -P "$job"; }
newest() { basename "$(find "$box/run/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -1)" | sed 's/step-0*//'; }
at_least() { (($(grep -c "$2" "$3") >= $1)); }
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null && none_of_its_hosts "$box/bin"; }
same() { "$tessera" compare "$box/one" "$box/run"; }
finishes() {
  wait "$job"
  local code=$?
  ((code == 0)) || { printf 'exit code %s\n' "$code"; cat "$box/run.err"; return 1; }
}
# Each step of the run is reported once.
every_step_once() { [[ $(grep -o '"step":[0-9]*' "$box/run/metrics.jsonl" | sort | uniq -d | wc -l) == 0 ]]; }

# hangs RANK SINCE: the rank is reported within ten seconds of SINCE, with the ranks that wait for it.
hangs() {
  expect "rank $1 is reported" until_true grep -q "rank $1 hangs: it has made no progress for 8 s, at step" "$box/run.err"
  local took=$((($(date +%s%N) - $2) / 1000000))
  expect "within 10 s, not $took ms" test "$took" -lt 10000
  expect "with the ranks that wait for it" grep -qE "(rank|ranks) [0-2].* for it; a signal has stopped its process .kill -CONT" "$box/run.err"
}
ranks_start_again() {
  configure 500 20
  start -n 3 --set run.restarts=2
  after_step 50
  kill -9 "$(pgrep -P "$job" | tail -1)"
  expect "it says so" until_true grep -q "the ranks start again (restart 1 of 2" "$box/run.err"
  expect "the lost rank was named" says "rank 2 was lost: signal 9 (SIGKILL)" "$box/run.err"
  expect "it trains again" until_true grep -q "going on after step" "$box/run.out"
  after_step 150
  kill -STOP "$(pgrep -P "$job" | sed -n 2p)"
  hangs 1 "$(date +%s%N)"
  expect "the job finishes after a rank that hangs" finishes
  expect "it had started again twice" says "restart 2 of 2" "$box/run.err"
  expect "an undisturbed run finishes" undisturbed
  expect "the bits are the same" same
  expect "every step is reported once" every_step_once
  expect "no process is left" until_true none_left
}

restarts_are_counted() {
  configure 100000
  start -n 2 --set run.restarts=1
  after_step 10
  kill -9 "$(pgrep -P "$job" | tail -1)"
  until_true grep -q "restart 1 of 1" "$box/run.err"
  after_step 60
  kill -9 "$(pgrep -P "$job" | tail -1)"
  wait "$job"
  code=$?
  expect "the second loss ends the job with exit code 6, not $code" test "$code" = 6
  expect "no process is left" until_true none_left
}

a_stop_is_a_stop() {
  configure 100000
  start -n 2 --set run.restarts=5
  after_step 10
  kill -TERM "$job"
  wait "$job"
  code=$?
  expect "it is saved and ends with exit code 75, not $code" test "$code" = 75
}

# host_is_lost LETTER LINE: the host is node-LETTER, whose agent is the process on that line.
host_is_lost() {
  configure 100000 20
  printf 'node-a slots=1\nnode-b slots=1\nnode-c slots=1\n' >"$box/hosts"
  start -H "$box/hosts" --master_addr 127.0.0.1 --elastic_training --min_elastic_nodes 2
  after_step 25
  touch "$box/bin/down-node-$1"
  kill -9 "$(agents | sed -n "$2p")"
  expect "it goes on without the host" until_true grep -q "goes on without what was lost: 2 of 3 hosts, 2 ranks" "$box/run.err"
  expect "the lost host was named" says "host node-$1 was lost" "$box/run.err"
  expect "it trains again" until_true grep -q "going on after step" "$box/run.out"
  rm "$box/bin/down-node-$1"
  expect "the host joins again" until_true grep -q "a host came back, and the job goes on with it: 3 of 3" "$box/run.err"
  until_true at_least 2 "going on after step" "$box/run.out"
  after_step $(($(newest) + 20))
  kill -TERM "$job"
  wait "$job"
  code=$?
  expect "a stop saves: exit code 75, not $code" test "$code" = 75
  expect "an undisturbed run finishes" undisturbed --set "trainer.max_steps=$(newest)"
  expect "the bits are the same" same
  expect "every step is reported once" every_step_once
  expect "no process is left" until_true none_left
}

too_few_are_left() {
  configure 100000 20
  printf 'node-a slots=1\nnode-b slots=1\n' >"$box/hosts"
  start -H "$box/hosts" --master_addr 127.0.0.1 --set run.restarts=3
  after_step 25
  touch "$box/bin/down-node-b"
  kill -9 "$(agents | tail -1)"
  expect "it waits for the host" until_true grep -q "too few; waiting for others" "$box/run.err"
  rm "$box/bin/down-node-b"
  expect "it goes on with it" until_true grep -q "2 of 2 hosts, 2 ranks" "$box/run.err"
  expect "it trains again" until_true grep -q "going on after step" "$box/run.out"
  after_step $(($(newest) + 20))
  kill -TERM "$job"
  wait "$job"
  code=$?
  expect "a stop saves, and the job does not start again: exit code 75, not $code" test "$code" = 75
  expect "no process is left" until_true none_left
}

a_host_waits_its_time() {
  configure 100000 20
  printf 'node-a slots=1\nnode-b slots=1\nnode-c slots=1\n' >"$box/hosts"
  start -H "$box/hosts" --master_addr 127.0.0.1 --elastic_training --set elasticity.enabled=true --set elasticity.version=0.1 \
    --set elasticity.max_train_batch_size=12 --set "elasticity.micro_batch_sizes=[2]" \
    --set elasticity.ignore_non_elastic_batch_info=true --set elasticity.min_time=1
  after_step 25
  kill -9 "$(agents | sed -n 2p)"
  expect "it trains again" until_true grep -q "going on after step" "$box/run.out"
  expect "the job tries whether the host runs the program" until_true grep -q "node-b .* version$" "$box/bin/calls"
  sleep 1
  expect "it does, and has not joined again" test "$(grep -c 'a host came back' "$box/run.err")" = 0
  expect "the other hosts train" test "$(grep -c 'going on after step' "$box/run.out")" = 1
  kill -TERM "$job"
  wait "$job"
  code=$?
  expect "a stop saves: exit code 75, not $code" test "$code" = 75
}
a_stopped_rank_is_told() {
  configure 100000 0
  start -n 3
  after_step 20
  kill -STOP "$(pgrep -P "$job" | sed -n 2p)"
  hangs 1 "$(date +%s%N)"
  wait "$job"
  code=$?
  expect "the job ends with exit code 6, not $code" test "$code" = 6
  "$tessera" doctor "$box/run" >"$box/doctor"
  expect "the doctor names it" says "rank 1" "$box/doctor"
}

a_slow_rank_is_reported() {
  configure 100000 0
  start -n 2
  after_step 20
  slow=$(pgrep -P "$job" | tail -1)
  # The process is stopped for half of the time.
  while kill -STOP "$slow" 2>/dev/null && sleep 0.03 && kill -CONT "$slow" 2>/dev/null; do sleep 0.03; done &
  expect "the rank is reported" until_true grep -qE "rank 1: [0-9.]+x slower.* than ranks with the same work" "$box/run.err"
  kill -9 "$job"
  wait
}

mistakes_are_reported() {
  configure
  printf 'node-a slots=1\nnode-b slots=1\n' >"$box/hosts"
  "$tessera" train "$box/tiny.json" -H "$box/hosts" --set run.min_hosts=3 >/dev/null 2>"$box/err"
  code=$?
  expect "exit code 2, not $code" test "$code" = 2
  expect "both numbers are reported" says "run.min_hosts is 3, and there are 2 hosts" "$box/err"
}
if [[ ${2:-} == whole ]]; then
  claim "a job goes on without a host that has not rank 0 and takes it back, with the same bits" host_is_lost b 2
  claim "a rank that a signal has stopped ends a job that does not start again" a_stopped_rank_is_told
  claim "a job on one host that was asked to stop does not start again" a_stop_is_a_stop
  claims_done
fi
claim "ranks of one host start again from the newest checkpoint, also after one that hangs" ranks_start_again
claim "a job starts again as often as run.restarts says" restarts_are_counted
claim "a job goes on without a lost host, that of rank 0, and takes it back, with the same bits" host_is_lost a 1
claim "a job that needs all hosts waits for the one that was lost" too_few_are_left
claim "a host that comes back joins elasticity.min_time after the last start at the earliest" a_host_waits_its_time
claim "a slow rank is reported" a_slow_rank_is_reported
claim "mistakes are reported" mistakes_are_reported
claims_done
