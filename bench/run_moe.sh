#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures models with experts, tessera and transformers alternately, and prints the ratios of the medians.
#
# usage: bench/run_moe.sh [ROUNDS [PART...]]   PART: layer step ranks (default: all)
#                                         PEERS: a Python that has torch 2.11 and transformers 5 (default ~/peers/bin/python)
#                                         EAGER=0 leaves out the slow way of transformers to compute a layer
#
# layer: forward and backward of one layer of experts. 8 experts, 2 a token, 256 rows an expert; 64 experts, 8 a token, 128 rows and
#        8 rows; fp32 and bf16; one thread; processor time.
# step:  a bf16 step (4 x 512 tokens, two threads) of a model like Qwen3-MoE with 12 layers of 64 experts: 328M parameters, of which a
#        token uses about 80M.
# ranks: a step of two ranks of one host with one thread each, 2 x 256 tokens a rank, experts whole on each rank and divided
#        between them; a layer of 8 experts with 2 a token, 4 layers. tessera alone.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
parts=("${@:2}")
((${#parts[@]})) || parts=(layer step ranks)
source bench/by_turns.sh
ours tessera
trainer=$bench
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT
steps=8

# config NAME MODEL BATCH MICRO LENGTH THREADS [MEMBERS]: writes $folder/NAME.json; tokens are bytes, of which the vocabulary has unused rows.
config() {
  cat >"$folder/$1.json" <<CONFIG
{
  "model": {$2},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": $5},
  "train_batch_size": $3, "train_micro_batch_size_per_gpu": $4, "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "trainer": {"max_steps": $steps},
  "run": {"threads_per_rank": $6}, "checkpoint": {"every": 0} ${7:-}
}
CONFIG
}

# step_of NAME RANKS: trains, and prints the median step behind the first two as JSON.
step_of() {
  rm -rf "$folder/run"
  "$trainer" train "$folder/$1.json" -n "$2" --set "run.dir=$folder/run" --quiet
  python3 - "$folder/run/metrics.jsonl" <<'MEDIAN'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
times = [row["step_ms"] for row in rows if "step_ms" in row]
print(json.dumps({"step_ms": round(statistics.median(times[2:]), 1), "steps": len(times)}))
MEDIAN
}
export -f step_of
export trainer folder

whole_step() {
  theirs torch transformers
  config qwen3moe '"family": "qwen3_moe", "num_layers": 12, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "head_dim": 64,
    "ffn_hidden_size": 2048, "vocab_size": 32000, "max_positions": 2048, "tie_embeddings": true,
    "moe": {"num_experts": 64, "top_k": 8, "ffn_hidden_size": 256}' 4 4 512 2
  local round
  for ((round = 1; round <= rounds; ++round)); do
    case_of "ours qwen3moe" bash -c "step_of qwen3moe 1"
    case_of "transformers qwen3moe" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/hf_train.py --model qwen3moe --batch 4 \
      --seq 512 --dtype autocast --steps "$steps"
  done
}

two_ranks() {
  local model='"family": "mixtral", "num_layers": 4, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden_size": 1024,
    "max_positions": 512, "moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 1024}'
  config whole "$model" 4 2 256 1
  config divided "$model" 4 2 256 1 ', "parallel": {"expert": 2}'
  local round
  for ((round = 1; round <= rounds; ++round)); do
    case_of "experts whole" bash -c "step_of whole 2"
    case_of "experts divided" bash -c "step_of divided 2"
  done
}

layers() {
  ours experts_bench
  theirs torch transformers
  local round sizes dtype way
  for ((round = 1; round <= rounds; ++round)); do
    for sizes in "8 2 512 1024 1024" "64 8 512 256 1024" "64 8 512 256 64"; do
      read -r experts top_k hidden ffn tokens <<<"$sizes"
      for dtype in fp32 bf16; do
        name="$experts experts, $((tokens * top_k / experts)) rows, $dtype"
        case_of "layer|ours|$name" "$bench" --experts "$experts" --top-k "$top_k" --hidden "$hidden" --ffn "$ffn" --tokens "$tokens" \
          --dtype "$dtype" --threads 1
        for way in grouped_mm eager; do
          [[ $way == eager && ${EAGER:-1} == 0 ]] && continue
          case_of "layer|$way|$name" env OMP_NUM_THREADS=1 "${tuned[@]}" "$peers" bench/peers/transformers_moe.py "$way" \
            "$experts" "$top_k" "$hidden" "$ffn" "$tokens" "$dtype" 1
        done
      done
    done
  done
}

for part in "${parts[@]}"; do
  case $part in
    layer) layers ;;
    step) whole_step ;;
    ranks) two_ranks ;;
    *) echo "run_moe: unknown part $part; fix: layer, step or ranks" >&2; exit 2 ;;
  esac
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates, times = {}, {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    values = json.loads(line)
    if name.startswith("layer|"):
        _, who, case = name.split("|")
        rates.setdefault(case, {}).setdefault(who, []).append(values["gflops"])
    else:
        times.setdefault(name, []).append(values["step_ms"])
if rates:
    print("\n| layer | tessera, GFLOP/s | grouped_mm | eager | tessera / grouped_mm |\n|---|---|---|---|---|")
for case, of in rates.items():
    median = {who: statistics.median(values) for who, values in of.items()}
    eager = f"{median['eager']:.1f}" if "eager" in median else ""
    print(f"| {case} | {median['ours']:.0f} | {median['grouped_mm']:.0f} | {eager} | {median['ours'] / median['grouped_mm']:.2f} |")
if times:
    print("\n| a step | ms |\n|---|---|")
for name, values in times.items():
    print(f"| {name} | {statistics.median(values):.0f} |")
SUMMARY
