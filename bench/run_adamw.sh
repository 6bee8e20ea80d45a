#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures an AdamW update of 100M fp32 parameters: tessera and PyTorch's fused AdamW alternately, and a loop that moves the same bytes.
#
# usage: bench/run_adamw.sh [ROUNDS]        PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
source bench/by_turns.sh
ours adamw_bench
theirs torch numpy
stream=$(mktemp)
trap 'rm -f "$results" "$stream"' EXIT
gcc -O3 -march=native -ffast-math -mprefer-vector-width=512 -fopenmp bench/peers/stream.c -o "$stream" -lm

for ((round = 1; round <= rounds; ++round)); do
  case_of ours "${tuned[@]}" "$bench" 2
  case_of torch env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/pytorch_adamw.py 2
  case_of loop env OMP_NUM_THREADS=2 "$stream"
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    result = json.loads(line)
    rates.setdefault(name, []).append(result.get("gbs28", result.get("adam28_gbs")))
median = {name: statistics.median(values) for name, values in rates.items()}
print("\n| | GB/s | G parameters/s |\n|---|---|---|")
for name, value in median.items():
    print(f"| {name} | {value:.1f} | {value / 28:.2f} |")
print(f"\nours / PyTorch: {median['ours'] / median['torch']:.2f}   ours / loop: {median['ours'] / median['loop']:.2f}")
SUMMARY
