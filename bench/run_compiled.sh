#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the 124M GPT-2 step on two threads, tessera and torch.compile alternately, and the matrix products of the step alone:
# bf16 and fp32 with B=4 T=512, bf16 with B=2 T=1024.
#
# usage: bench/run_compiled.sh [ROUNDS [TYPE...]]   TYPE: bf16, fp32 (default: both)
#                                                     PEERS: a Python that has torch 2.11 (default ~/peers/bin/python)
#
# On a CPU without bf16 instructions, PyTorch's bf16 products take minutes each: measure only fp32 there.
# torch.compile takes a minute or two before its first step. PyTorch runs with the allocator settings that suit it
# best; bench/peers/quiet_run.py reports on standard error how much of the machine other processes used.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
types=${*:2}
types=" ${types:-bf16 fp32} "
source bench/by_turns.sh
ours step_bench
theirs torch numpy

# both NAME BATCH LENGTH OUR_TYPE THEIR_TYPE
both() {
  case_of "ours $1" "$bench" --ranks 1 --threads 2 --batch "$2" --length "$3" --dtype "$4" --steps 5
  case_of "torch $1" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/pytorch_gpt2_train.py --dtype "$5" --attn sdpa \
    --optim adamw_fused -B "$2" -T "$3" --steps 5 --threads 2 --compile
}
# products: tokens/s of a step that consists only of its matrix products, as libtorch computes them.
products() {
  # shellcheck disable=SC2086  # one word per type
  OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/gemm_floor.py $types | sed -nE \
    's/^torch\.(bfloat16|float32) sum .* tok\/s ([0-9]+)$/\1 {"tokens_per_s": \2}/p' | while read -r type line; do
    printf 'products %s\t%s\n' "${type/bfloat16/bf16}" "$line" | sed 's/float32/fp32/' | tee -a "$results"
  done
}

for ((round = 1; round <= rounds; ++round)); do
  products
  if [[ $types == *" bf16 "* ]]; then both bf16 4 512 bf16 autocast; fi
  if [[ $types == *" fp32 "* ]]; then both fp32 4 512 fp32 fp32; fi
  if [[ $types == *" bf16 "* ]]; then both "bf16 T=1024" 2 1024 bf16 autocast; fi
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates, peaks = {}, {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    result = json.loads(line)
    rates.setdefault(name, []).append(result["tokens_per_s"])
    peaks.setdefault(name, []).append(result.get("peak_mb", result.get("peak_rss_mb", 0)))
median = {name: statistics.median(values) for name, values in rates.items()}
print("\n| step | tokens/s | torch.compile | ratio | of the products alone | theirs | MB | theirs | ratio |\n|---|---|---|---|---|---|---|---|---|")
for case in ("bf16", "fp32", "bf16 T=1024"):
    if "ours " + case not in median:
        continue
    ours, theirs = median["ours " + case], median["torch " + case]
    floor = median["products " + case.split()[0]]
    mine, their = (statistics.median(peaks[who + case]) for who in ("ours ", "torch "))
    print(f"| {case} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} | {ours / floor:.2f} | {theirs / floor:.2f} | {mine:.0f} | {their:.0f} | {mine / their:.2f} |")
SUMMARY
