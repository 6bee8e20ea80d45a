#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the 124M GPT-2 step (B=4, T=512, bf16) on 2 ranks x 1 thread in every ZeRO stage, tessera and DeepSpeed alternately.
#
# usage: bench/run_zero.sh [ROUNDS]   PEERS: a Python that has torch 2.11 and deepspeed 0.19 (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
source bench/by_turns.sh
ours step_bench
theirs torch numpy deepspeed

for ((round = 1; round <= rounds; ++round)); do
  for stage in 0 1 2 3; do
    case_of "ours $stage" "$bench" --ranks 2 --threads 1 --batch 4 --length 512 --dtype bf16 --stage "$stage" --steps 5
    case_of "theirs $stage" env OMP_NUM_THREADS=1 "${tuned[@]}" "$peers" bench/peers/deepspeed_gpt2_train.py --stage "$stage" --steps 3
  done
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
peak = {name: statistics.median(values) for name, values in peaks.items()}
print("\n| stage | tokens/s | of our stage 0 | DeepSpeed | ours / DeepSpeed | MB of a rank | DeepSpeed |")
print("|---|---|---|---|---|---|---|")
for stage in "0123":
    ours, theirs = median["ours " + stage], median["theirs " + stage]
    print(f"| {stage} | {ours:.0f} | {ours / median['ours 0']:.2f} | {theirs:.0f} | {ours / theirs:.2f} "
          f"| {peak['ours ' + stage]:.0f} | {peak['theirs ' + stage]:.0f} |")
SUMMARY
