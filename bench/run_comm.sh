#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures collectives between two local ranks: tessera over shared memory (in the transport's regions and in ordinary memory),
# plain loops over shared memory that only sum or copy, and PyTorch's gloo, alternately.
#
# usage: bench/run_comm.sh [ROUNDS]        PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-2}
source bench/by_turns.sh
ours comm_bench
theirs torch numpy
limit=$(mktemp)
trap 'rm -f "$results" "$limit"' EXIT
gcc -O3 -march=native bench/peers/shm_limit.c -o "$limit" -lpthread
for ((round = 1; round <= rounds; ++round)); do
  python3 bench/peers/quiet_run.py -- "$bench" | tee -a "$results"
  python3 bench/peers/quiet_run.py -- "$limit" | tee -a "$results"
  python3 bench/peers/quiet_run.py -- env OMP_NUM_THREADS=1 "$peers" bench/peers/torch_coll.py | tee -a "$results"
done
python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "gbs" in row:
        rates.setdefault((row["op"], row["mb"]), {}).setdefault(row["what"], []).append(row["gbs"])
print("\n| operation | MB | regions, GB/s | of plain loops | ordinary memory | of plain loops | gloo | regions / gloo |")
print("|---|---|---|---|---|---|---|---|")
for (op, mb), found in rates.items():
    if len(found) == 4:
        ours, plain, loops, theirs = (statistics.median(found[name]) for name in (
            "tessera shm", "tessera shm, ordinary memory", "shm_limit", "gloo"))
        print(f"| {op} | {mb} | {ours:.1f} | {ours / loops:.2f} | {plain:.1f} | {plain / loops:.2f} | {theirs:.2f} | {ours / theirs:.1f} |")
SUMMARY
