#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures forward and backward of one layer of experts, tessera and transformers' two ways to compute experts alternately, and
# prints the ratios of the medians.
#
# usage: bench/run_moe.sh [ROUNDS]        PEERS: a Python that has torch 2.11 and transformers 5 (default ~/peers/bin/python)
#                                         EAGER=0 leaves out the slow one
#
# Cases: 8 experts, 2 a token, 256 rows an expert; 64 experts, 8 a token, 128 rows and 8 rows; fp32 and bf16; one thread.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
source bench/by_turns.sh
ours experts_bench
theirs torch transformers

for ((round = 1; round <= rounds; ++round)); do
  for sizes in "8 2 512 1024 1024" "64 8 512 256 1024" "64 8 512 256 64"; do
    read -r experts top_k hidden ffn tokens <<<"$sizes"
    for dtype in fp32 bf16; do
      name="$experts experts, $((tokens * top_k / experts)) rows, $dtype"
      case_of "ours|$name" "$bench" --experts "$experts" --top-k "$top_k" --hidden "$hidden" --ffn "$ffn" --tokens "$tokens" \
        --dtype "$dtype" --threads 1
      for way in grouped_mm eager; do
        [[ $way == eager && ${EAGER:-1} == 0 ]] && continue
        case_of "$way|$name" env OMP_NUM_THREADS=1 "${tuned[@]}" "$peers" bench/peers/transformers_moe.py "$way" \
          "$experts" "$top_k" "$hidden" "$ffn" "$tokens" "$dtype" 1
      done
    done
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    who, case = name.split("|")
    rates.setdefault(case, {}).setdefault(who, []).append(json.loads(line)["gflops"])
print("\n| layer | tessera, GFLOP/s | grouped_mm | eager | tessera / grouped_mm |\n|---|---|---|---|---|")
for case, of in rates.items():
    median = {who: statistics.median(values) for who, values in of.items()}
    eager = f"{median['eager']:.1f}" if "eager" in median else ""
    print(f"| {case} | {median['ours']:.0f} | {median['grouped_mm']:.0f} | {eager} | {median['ours'] / median['grouped_mm']:.2f} |")
SUMMARY
