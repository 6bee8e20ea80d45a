#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures saving and loading a model of 1.1 GB: tessera with checksums, plain sequential I/O (as dd), and Python's safetensors,
# alternately on one disk.
#
# usage: bench/run_checkpoint.sh [ROUNDS] [FOLDER]   FOLDER: on the disk to be measured (default: TMPDIR)
#        PEERS: a Python that has torch and safetensors (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
source bench/by_turns.sh
ours checkpoint_bench
theirs torch safetensors
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/tessera-io-XXXXXX")
trap 'rm -rf "$results" "$work"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  sync
  python3 bench/peers/quiet_run.py -- "$bench" "$work/model" | tee -a "$results"
  python3 bench/peers/quiet_run.py -- "$peers" bench/peers/safetensors_io.py \
    "$work/model/checkpoints/step-00000001/rank-00000.safetensors" | tee -a "$results"
  rm -rf "$work/model"
done
python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    rates.setdefault((row["what"], row["cache"]), []).append(row["gbs"])
print("\n| | cache | GB/s | of plain I/O |\n|---|---|---|---|")
for (what, cache), found in rates.items():
    base = statistics.median(rates[("plain write" if "save" in what or "write" in what else "plain read", cache)])
    print(f"| {what} | {cache} | {statistics.median(found):.2f} | {statistics.median(found) / base:.2f} |")
SUMMARY
