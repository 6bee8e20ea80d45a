#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the time from the shell to the end of the first step on two ranks: `tessera train` with a tiny model, and torchrun with
# the smallest DistributedDataParallel program, alternately. Prints medians.
#
# usage: bench/run_startup.sh [ROUNDS]     PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-7}
source bench/by_turns.sh
ours tessera
theirs torch numpy
folder=$(mktemp -d)
trap 'rm -rf "$results" "$folder"' EXIT

seconds() {  # seconds COMMAND...: wall time
  local begin=$EPOCHREALTIME
  "$@" >"$folder/out" 2>&1 || { cat "$folder/out" >&2; return 1; }
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.3f\n", b - a}'
}
start_ours() { seconds "$bench" train bench/startup.json -n 2 --set "run.dir=\"$folder/run-$1\""; }
start_theirs() { seconds env OMP_NUM_THREADS=1 "$(dirname "$peers")/torchrun" --nproc_per_node 2 bench/peers/ddp_hello.py; }
median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

start_ours 0 >/dev/null  # fills the token cache
start_theirs >/dev/null
for ((round = 1; round <= rounds; ++round)); do
  start_ours "$round" >>"$folder/ours"
  start_theirs >>"$folder/theirs"
done
printf 'tessera train -n 2   %s s   (%s)\n' "$(median "$folder/ours")" "$(paste -sd' ' "$folder/ours")"
printf 'torchrun, 2 ranks    %s s   (%s)\n' "$(median "$folder/theirs")" "$(paste -sd' ' "$folder/theirs")"
