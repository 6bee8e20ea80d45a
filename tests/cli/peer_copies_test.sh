#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# timeout: 600
# A job goes on from the copies of its state in the memories of the hosts that are left, without a checkpoint on disk, and
# gives the bits of one that was never disturbed. The hosts are behind a stand-in for ssh.   usage: peer_copies_test.sh PROGRAM [whole]
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
tessera=$(realpath "${1:?usage: peer_copies_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
# The training that was never disturbed, with which all claims compare theirs.
shared=$(mktemp -d)
trap 'rm -rf -- "$shared"' EXIT

# configure STEPS HOSTS...: no checkpoint before the end. The global batch has six micro-batches.
configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
  "trainer": {"max_steps": $1}, "run": {"threads_per_rank": 1, "min_hosts": 1},
  "zero_optimization": {"stage": 1}, "checkpoint": {"every": 0, "peer_copies": 1, "peer_every": 5}
}
JSON
  printf '%s slots=1\n' "${@:2}" >"$box/hosts"
  stand_in_for_ssh "$box/bin"
  shared_before=$(shared_files)
}
readonly steps=200
undisturbed() {
  [[ -e $shared/trained ]] || {
    "$tessera" train "$box/tiny.json" --set "run.dir=$shared/one" >"$box/one.out" 2>"$box/one.err" && touch "$shared/trained"
  }
}
start() {
  setsid "$tessera" train "$box/tiny.json" -H "$box/hosts" --master_addr 127.0.0.1 --set "run.dir=$box/run" "$@" \
    >"$box/run.out" 2>"$box/run.err" &
  job=$!
}
reached() { [[ $(tail -1 "$box/run/metrics.jsonl" 2>/dev/null) =~ \"step\":([0-9]+) ]] && ((BASH_REMATCH[1] >= $1)); }
# The processes of a host: its agent and its copy server, in the order of the hosts.
agents() { pgrep -P "$job" -f " agent$"; }
copy_servers() { pgrep -P "$job" -f " copy-server$"; }
# lose LETTER=LINE...: the hosts node-LETTER, whose processes are on these lines, are down from now on.
lose() {
  local host victims=()
  for host; do
    touch "$box/bin/down-node-${host%=*}"
    victims+=("$(agents | sed -n "${host#*=}p")" "$(copy_servers | sed -n "${host#*=}p")")
  done
  kill -9 "${victims[@]}"
}
told() { grep -qE "$1" "$box/run.err"; }
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null && none_of_its_hosts "$box/bin"; }
# Open MPI's segments belong to other tests.
shared_files() { find /dev/shm -type f ! -name 'vader*' | sort; }
no_memory_left() { [[ -z $(comm -13 <(printf '%s\n' "$shared_before") <(shared_files)) ]]; }
same() { "$tessera" compare "$shared/one" "$box/run"; }
every_step_once() { [[ $(grep -o '"step":[0-9]*' "$box/run/metrics.jsonl" | sort | uniq -d | wc -l) == 0 ]]; }
finishes() {
  wait "$job"
  local code=$?
  ((code == 0)) || { printf 'exit code %s\n' "$code"; cat "$box/run.err"; return 1; }
}
ends_well() {
  expect "the job finishes" finishes
  expect "an undisturbed run finishes" undisturbed
  expect "the bits are the same" same
  expect "every step is reported once" every_step_once
  expect "no process is left" until_true none_left
  expect "no shared memory is left" until_true no_memory_left
}

goes_on_from_memory() {
  configure "$steps" node-a node-b node-c
  start
  expect "it trains" until_true reached 40
  lose b=2
  expect "it goes on from the copies" until_true grep -qE "2 of 3 hosts, 2 ranks, from the copies of step [0-9]+ in memory" "$box/run.err"
  expect "it trains again" until_true grep -qE "going on after step [0-9]+, from the copies in memory" "$box/run.out"
  ends_well
}

a_rank_dies() {
  configure "$steps" node-a node-b
  start
  expect "it trains" until_true reached 40
  kill -9 "$(pgrep -P "$(agents | sed -n 2p)")"
  expect "it goes on from the copies" until_true grep -qE "2 of 2 hosts, 2 ranks, from the copies of step [0-9]+ in memory" "$box/run.err"
  ends_well
}

# The first host that is lost has rank 0.
two_losses() {
  configure "$steps" node-a node-b node-c
  start
  expect "it trains" until_true reached 40
  lose a=1
  expect "it goes on from the copies" until_true grep -qE "2 of 3 hosts, 2 ranks, from the copies of step [0-9]+ in memory" "$box/run.err"
  expect "it trains again" until_true grep -qE "going on after step [0-9]+, from the copies in memory" "$box/run.out"
  expect "no checkpoint was there" test -z "$(find "$box/run/checkpoints" -name 'step-*')"
  from=$(grep -oE "going on after step [0-9]+" "$box/run.out" | grep -oE "[0-9]+")
  expect "it trains for a while" until_true reached $((from + 40))
  lose c=2
  expect "it goes on a second time" until_true grep -qE "1 of 3 hosts, 1 ranks, from the copies of step [0-9]+ in memory" "$box/run.err"
  ends_well
}

neighbours_are_lost() {
  configure "$steps" node-a node-b node-c
  start --set checkpoint.every=20
  expect "it trains" until_true reached 50
  lose b=2 c=3
  # The newest copies lack those of one rank, and of more if the hosts were lost while the others were being sent.
  expect "it says why it does not" until_true told "from the newest checkpoint, because the copies of step [0-9]+ in memory lack those of [0-9]+ rank"
  expect "the steps are those of the checkpoint" until_true grep -qE "going on after step ([468]0|1[02468]0)$" "$box/run.out"
  ends_well
}

the_job_is_killed() {
  configure 100000 node-a node-b
  start
  expect "it trains" until_true reached 30
  kill -9 "$job"
  wait "$job"
  expect "no process is left" until_true none_left
  expect "no shared memory is left" until_true no_memory_left
}

mistakes_are_reported() {
  configure 100 node-a node-b
  "$tessera" train "$box/tiny.json" --set "run={}" --set "run.dir=$box/run" >/dev/null 2>"$box/err"
  code=$?
  expect "exit code 2, not $code" test "$code" = 2
  expect "the way on is reported" says "set run.min_hosts or run.restarts" "$box/err"
  "$tessera" train "$box/tiny.json" --set trainer.max_steps=3 --set "run.dir=$box/run" >/dev/null 2>"$box/err"
  expect "one host has no neighbour" says "checkpoint.peer_copies has no effect" "$box/err"
}
if [[ ${2:-} == whole ]]; then
  claim "a job goes on from the memories of the hosts that are left" goes_on_from_memory
  claims_done
fi
claim "a job goes on from memory after one loss and another" two_losses
claim "so it does after the death of a rank" a_rank_dies
claim "a job that lost two neighbours goes on from the newest checkpoint" neighbours_are_lost
claim "copies end with their job" the_job_is_killed
claim "mistakes are reported" mistakes_are_reported
claims_done
