#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From the shell to the end of the first step on two ranks: `tessera train` of a tiny model, and torchrun of the
# smallest DistributedDataParallel program, by turns. Medians.
#
# usage: bench/run_startup.sh [ROUNDS]     PEERS: the bin folder of a Python that has torch 2.11 (default ~/peers/bin)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-7}
peers=${PEERS:-$HOME/peers/bin}
program=build/release/bin/tessera
[[ -x $program ]] || { echo "run_startup: $program is not built; fix: tools/build.sh release" >&2; exit 8; }
[[ -x $peers/torchrun ]] || { echo "run_startup: no $peers/torchrun; fix: python3 -m venv ~/peers && ~/peers/bin/pip install torch==2.11.0 numpy" >&2; exit 8; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

seconds() {  # seconds COMMAND...: wall time
  local begin=$EPOCHREALTIME
  "$@" >"$folder/out" 2>&1 || { cat "$folder/out" >&2; return 1; }
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {printf "%.3f\n", b - a}'
}
ours() { seconds "$program" train bench/startup.json -n 2 --set "run.dir=\"$folder/run-$1\""; }
theirs() { seconds env OMP_NUM_THREADS=1 "$peers/torchrun" --nproc_per_node 2 bench/peers/ddp_hello.py; }
median() { sort -n "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

ours 0 >/dev/null  # fills the token cache
theirs >/dev/null
for ((round = 1; round <= rounds; ++round)); do
  ours "$round" >>"$folder/ours"
  theirs >>"$folder/theirs"
done
printf 'tessera train -n 2   %s s   (%s)\n' "$(median "$folder/ours")" "$(paste -sd' ' "$folder/ours")"
printf 'torchrun, 2 ranks    %s s   (%s)\n' "$(median "$folder/theirs")" "$(paste -sd' ' "$folder/theirs")"
