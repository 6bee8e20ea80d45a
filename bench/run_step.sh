#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the 124M GPT-2 step (B=4, T=512, bf16), tessera and PyTorch alternately, and prints the ratio of the medians.
#
# usage: bench/run_step.sh [ROUNDS]        PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
#
# PyTorch runs with the allocator settings that suit it best; bench/peers/quiet_run.py reports on standard error how much
# of the machine other processes used. Cases: 1 rank x 2 threads, 2 ranks x 1 thread.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
source bench/by_turns.sh
ours step_bench
theirs torch numpy
theirs=(bench/peers/pytorch_gpt2_train.py --dtype autocast --attn sdpa --optim adamw_fused -B 4 -T 512 --steps 5)

for ((round = 1; round <= rounds; ++round)); do
  case_of "ours 1x2" "$bench" --ranks 1 --threads 2 --batch 4 --length 512 --dtype bf16 --steps 5
  case_of "torch 1x2" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" "${theirs[@]}" --threads 2
  case_of "ours 2x1" "$bench" --ranks 2 --threads 1 --batch 4 --length 512 --dtype bf16 --steps 5
  case_of "torch 2x1" env OMP_NUM_THREADS=1 "${tuned[@]}" "$peers" "${theirs[@]}" --procs 2 --threads 1
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates, peaks = {}, {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    result = json.loads(line)
    rates.setdefault(name, []).append(result["tokens_per_s"])
    peaks.setdefault(name, []).append(result.get("peak_mb", result.get("peak_rss_mb")))
median = {name: statistics.median(values) for name, values in rates.items()}
print("\n| | tokens/s | MB of the largest rank |\n|---|---|---|")
for name, value in median.items():
    print(f"| {name} | {value:.0f} | {statistics.median(peaks[name]):.0f} |")
print(f"\nours / PyTorch, 1x2: {median['ours 1x2'] / median['torch 1x2']:.2f}"
      f"   2x1: {median['ours 2x1'] / median['torch 2x1']:.2f}")
print(f"2x1 / 1x2, ours: {median['ours 2x1'] / median['ours 1x2']:.2f}"
      f"   PyTorch: {median['torch 2x1'] / median['torch 1x2']:.2f}")
SUMMARY
