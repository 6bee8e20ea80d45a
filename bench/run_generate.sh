#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures greedy generation with a 124M GPT-2 and random weights, a prompt of 64 tokens and 128 new ones: tessera and PyTorch alternately.
#
# usage: bench/run_generate.sh [ROUNDS [BATCH...]]   BATCH: sequences in bf16 (default: 1 4)
#                                                      PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
#
# PyTorch keeps weights, activations and a preallocated KV cache in bf16; its script is bench/peers/pytorch_generate.py.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-2}
batches=(1 4)
if (($# > 1)); then batches=("${@:2}"); fi
source bench/by_turns.sh
ours generate_bench
theirs torch numpy

for ((round = 1; round <= rounds; ++round)); do
  for batch in "${batches[@]}"; do
    case_of "ours bf16 x $batch" "$bench" --threads 2 --weights bf16 --batch "$batch"
    case_of "torch bf16 x $batch" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/pytorch_generate.py --dtype bf16 --threads 2 --batch "$batch"
  done
  case_of "ours int8 x 1" "$bench" --threads 2 --weights int8
  case_of "ours fp32 x 1" "$bench" --threads 2 --weights fp32
  case_of "torch fp32 x 1" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/pytorch_generate.py --dtype fp32 --threads 2
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
found = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    found.setdefault(name, []).append(json.loads(line))
def median(name, key):
    values = [result[key] for result in found[name] if key in result]
    return statistics.median(values) if values else None
print("\n| | tokens/s | prompt, ms | weights, GB/s | of the read bandwidth |\n|---|---|---|---|---|")
for name in found:
    share = median(name, "of_read")
    print(f"| {name} | {median(name, 'tokens_per_s'):.1f} | {median(name, 'prefill_ms'):.0f} |"
          f" {median(name, 'weight_gbs'):.1f} | {'' if share is None else f'{share:.2f}'} |")
for kind in [name.removeprefix("torch ") for name in found if name.startswith("torch ")]:
    print(f"ours / PyTorch, {kind}: {median('ours ' + kind, 'tokens_per_s') / median('torch ' + kind, 'tokens_per_s'):.2f}")
SUMMARY
