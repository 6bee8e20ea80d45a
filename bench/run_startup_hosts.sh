#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the time from the shell to the end of the first step on two hosts with a rank each: `tessera train --hostfile` with a
# tiny model, over a real sshd of this machine. Prints the median; the second line is the same with copies in memory.
#
# usage: bench/run_startup_hosts.sh [ROUNDS]
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 2
source bench/by_turns.sh
source tests/support/claims.sh
source tests/support/sshd.sh
set -e
ours tessera
folder=$(mktemp -d)
trap 'stop_sshd "$folder"; rm -rf "$results" "$folder"' EXIT
start_sshd "$folder" node-a node-b || { echo "run_startup_hosts: no sshd runs here; fix: apt-get install openssh-server" >&2; exit 8; }
printf 'node-a slots=1\nnode-b slots=1\n' >"$folder/hosts"

# start NAME ARGUMENTS...: appends the seconds to a file.
start() {
  local begin=$EPOCHREALTIME
  rm -rf "$folder/run"
  "$bench" train bench/startup.json -H "$folder/hosts" --master_addr 127.0.0.1 --launcher_args "-F $folder/config" \
    --set "run.dir=\"$folder/run\"" "${@:2}" >"$folder/out" 2>&1 || { cat "$folder/out" >&2; return 1; }
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.3f\n", b - a}' >>"$folder/$1"
}
median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
tell() { printf '%-22s %s s   (%s)\n' "$1" "$(median "$folder/$2")" "$(paste -sd' ' "$folder/$2")"; }

start warm
for ((round = 0; round < ${1:-5}; ++round)); do
  start plain
  start copies --set run.min_hosts=1 --set checkpoint.peer_copies=1
done
tell "two hosts, ssh" plain
tell "with copies in memory" copies
