#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a bf16 training step on two threads, tessera and transformers under torch.compile alternately: a Llama of 125M
# (B=4 T=512), BERT-base with hidden tokens (B=16 T=128) and T5-small (B=8, 256 + 128 tokens).
#
# usage: bench/run_families.sh [ROUNDS [MODEL...]]   MODEL: llama125m bert-base t5-small (default: all)
#                                                      PEERS: a Python that has torch 2.11 and transformers 5 (default ~/peers/bin/python)
#
# Both train from the beginning with AdamW; tessera keeps fp32 master weights, transformers runs in bf16 autocast. The time of
# a step does not depend on what the tokens are. torch.compile takes a minute or two before its first step.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
models=("${@:2}")
((${#models[@]})) || models=(llama125m bert-base t5-small)
source bench/by_turns.sh
ours tessera
theirs torch transformers
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT
steps=8

# config MODEL: writes $folder/MODEL.json; tokens are bytes, of which the vocabulary has unused rows.
config() {
  local model task="" data="\"train\": \"examples/data/shakespeare.txt\"" batch length
  case $1 in
    llama125m)
      batch=4 length=512
      model='"family": "llama", "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048,
        "vocab_size": 32000, "max_positions": 2048' ;;
    bert-base)
      batch=16 length=128
      model='"family": "bert", "preset": "bert-base-uncased", "vocab_size": 30522'
      task='"task": {"type": "masked_lm", "params": {"mask_token_id": 7}},' ;;
    t5-small)
      batch=8 length=256
      model='"family": "t5", "preset": "t5-small", "vocab_size": 32128'
      task='"task": {"type": "seq2seq", "params": {"target_length": 128}},'
      python3 - >"$folder/pairs.jsonl" <<'PAIRS'
import json, random
draw = random.Random(1)
letters = lambda count: "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=count))
for _ in range(256):
    print(json.dumps({"source": letters(255), "target": letters(127)}))
PAIRS
      data="\"train\": \"$folder/pairs.jsonl\"" ;;
    *) echo "run_families: unknown model $1; fix: llama125m, bert-base or t5-small" >&2; exit 2 ;;
  esac
  cat >"$folder/$1.json" <<CONFIG
{
  "model": {$model}, $task
  "data": {$data, "sequence_length": $length},
  "train_batch_size": $batch, "train_micro_batch_size_per_gpu": $batch, "bf16": {"enabled": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "trainer": {"max_steps": $steps},
  "run": {"threads_per_rank": 2}, "checkpoint": {"every": 0}
}
CONFIG
}

# step_of MODEL: trains, and prints the median step behind the first two as JSON.
step_of() {
  rm -rf "$folder/run"
  "$bench" train "$folder/$1.json" --set "run.dir=$folder/run" --quiet
  python3 - "$folder/run/metrics.jsonl" <<'MEDIAN'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
times = [row["step_ms"] for row in rows if "step_ms" in row]
print(json.dumps({"step_ms": round(statistics.median(times[2:]), 1), "steps": len(times)}))
MEDIAN
}
export -f step_of
export bench folder

for ((round = 1; round <= rounds; ++round)); do
  for model in "${models[@]}"; do
    [[ -e $folder/$model.json ]] || config "$model"
    target=()
    case $model in
      llama125m) shape=(--batch 4 --seq 512) ;;
      bert-base) shape=(--batch 16 --seq 128) ;;
      t5-small) shape=(--batch 8 --seq 256) target=(--target-seq 128) ;;
    esac
    case_of "ours $model" bash -c "step_of $model"
    case_of "transformers $model" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/hf_train.py --model "$model" "${shape[@]}" \
      "${target[@]}" --dtype autocast --compile --steps "$steps"
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
times = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    times.setdefault(name, []).append(json.loads(line)["step_ms"])
median = {name: statistics.median(values) for name, values in times.items()}
print("\n| | ours, ms a step | transformers, compiled | ratio |\n|---|---|---|---|")
for name in [name.removeprefix("ours ") for name in median if name.startswith("ours ")]:
    mine, other = median["ours " + name], median["transformers " + name]
    print(f"| {name} | {mine:.0f} | {other:.0f} | {other / mine:.2f} |")
SUMMARY
