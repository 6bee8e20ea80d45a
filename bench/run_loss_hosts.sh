#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the time from the loss of a host to the next step of the training that goes on without it: three hosts with a rank
# each behind a stand-in for ssh, and a tiny model. The agent and the copy server of a host are killed. Prints the median with
# copies in memory, and with a checkpoint on disk every five steps instead.
#
# usage: bench/run_loss_hosts.sh [ROUNDS]
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 2
source bench/by_turns.sh
source tests/support/claims.sh
source tests/support/ssh_stand_in.sh
set -e
ours tessera
bench=$(realpath "$bench")
folder=$(mktemp -d)
job=
clean_up() {
  [[ -z $job ]] || kill -9 "$job" 2>/dev/null || true
  rm -rf -- "$results" "$folder"
}
trap clean_up EXIT
stand_in_for_ssh "$folder/bin"
printf 'node-a slots=1\nnode-b slots=1\nnode-c slots=1\n' >"$folder/hosts"
# Six micro-batches are shared by three ranks and by two.
sed 's/"train_batch_size": 4/"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1/; s/"max_steps": 1/"max_steps": 1000000/' \
  bench/startup.json >"$folder/startup.json"

last_step() { tail -n 1 "$folder/run/metrics.jsonl" 2>/dev/null | grep -oE '"step":[0-9]+' | grep -oE '[0-9]+' || echo 0; }
reached() { (($(last_step) > $1)); }
goes_on_after() { grep -oE 'going on after step [0-9]+' "$folder/out" | tail -n 1 | grep -oE '[0-9]+$'; }
goes_on() { [[ -n $(goes_on_after) ]]; }

# patiently CONDITION...: waits for the condition, for at least two minutes.
patiently() {
  local turn
  for turn in 1 2 3 4 5 6; do until_true "$@" && return; done
  echo "run_loss_hosts: in vain: $*" >&2
  cat "$folder/out" >&2
  return 1
}

# lose NAME ARGUMENTS...: appends the seconds from the loss of the second host to the end of the next step to a file.
lose() {
  local begin processes
  rm -rf "$folder/run"
  setsid "$bench" train "$folder/startup.json" -H "$folder/hosts" --master_addr 127.0.0.1 --set "run.dir=\"$folder/run\"" \
    --set run.min_hosts=1 "${@:2}" >"$folder/out" 2>&1 &
  job=$!
  patiently reached 30
  touch "$folder/bin/down-node-b"
  processes=$(pgrep -P "$job" -f ' agent$' | sed -n 2p; pgrep -P "$job" -f ' copy-server$' | sed -n 2p || true)
  begin=$EPOCHREALTIME
  # shellcheck disable=SC2086
  kill -9 $processes
  patiently goes_on
  patiently reached "$(goes_on_after)"
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.3f\n", b - a}' >>"$folder/$1"
  kill -9 "$job"
  wait "$job" 2>/dev/null || true
  job=
  patiently none_of_its_hosts "$folder/bin"
  rm "$folder/bin/down-node-b"
}
median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
tell() { printf '%-22s %s s   (%s)\n' "$1" "$(median "$folder/$2")" "$(paste -sd' ' "$folder/$2")"; }

for ((round = 0; round < ${1:-5}; ++round)); do
  lose copies --set checkpoint.peer_copies=1 --set checkpoint.peer_every=5
  lose disk --set checkpoint.every=5
done
tell "with copies in memory" copies
tell "from a checkpoint" disk
