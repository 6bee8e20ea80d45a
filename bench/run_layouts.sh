#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures two ranks of one thread with pipeline or tensor parallelism, compared with one rank of two threads with
# the same micro-batches.   usage: bench/run_layouts.sh [ROUNDS]
#
# The model is GPT-2 small with a vocabulary of 256, so that both stages have the same amount of work.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
source bench/by_turns.sh
ours step_bench
shape=(--preset gpt2-small --vocab 256 --batch 16 --micros 16 --length 512 --dtype bf16 --steps 3 --warmup 1)

for ((round = 1; round <= rounds; ++round)); do
  case_of "1 x 2" "$bench" --ranks 1 --threads 2 "${shape[@]}"
  for schedule in gpipe 1f1b interleaved zb-h1 zb-v; do
    case_of "pipeline 2, $schedule" "$bench" --ranks 2 --threads 1 --pipeline 2 --schedule "$schedule" "${shape[@]}"
  done
  case_of "tensor 2" "$bench" --ranks 2 --threads 1 --tensor 2 "${shape[@]}"
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rows = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    rows.setdefault(name, []).append(json.loads(line))
def median(name, key):
    return statistics.median(result[key] for result in rows[name])
print("\n| | tokens/s | of 1 x 2 | bubble | simulated | with measured stages | MB of the largest rank |\n|---|---|---|---|---|---|---|")
for name in rows:
    bubble = [f"{100 * median(name, key):.1f} %" if key in rows[name][0] else "" for key in ("bubble", "bubble_simulated", "bubble_simulated_as_measured")]
    rate = median(name, "tokens_per_s")
    print(f"| {name} | {rate:.0f} | {rate / median('1 x 2', 'tokens_per_s'):.2f} | {' | '.join(bubble)} | {median(name, 'peak_mb'):.0f} |")
SUMMARY
