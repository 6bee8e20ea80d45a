#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures greedy text on two threads, one text: tessera and llama.cpp alternately, with weights in bf16 and in eight bits (int8
# here, Q8_0 there).
#
# usage: bench/run_llama_cpp.sh [ROUNDS [MODEL...]]   MODEL: llama (125M), or qwen3moe (352M in 12 layers of 64 experts, of which a
#                                            token uses 8 and about 105M; both with GPT-2's vocabulary); default: both
#                                            PEERS: a Python that has llama-cpp-python (default ~/peers/bin/python); its sdist builds
#                                            llama.cpp for this machine: ~/peers/bin/pip install llama-cpp-python
#
# The models are random: one training step is made with each, and both programs read what tessera converts. A prompt of 64 tokens,
# 128 new ones.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
chosen=("${@:2}")
((${#chosen[@]})) || chosen=(llama qwen3moe)
source bench/by_turns.sh
ours tessera
theirs llama_cpp
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT

declare -A models=(
  [llama]='"family": "llama", "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048'
  [qwen3moe]='"family": "qwen3_moe", "num_layers": 12, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "head_dim": 64,
    "ffn_hidden_size": 2048, "tie_embeddings": true, "moe": {"num_experts": 64, "top_k": 8, "ffn_hidden_size": 256}'
)
for model in "${chosen[@]}"; do
  [[ -n ${models[$model]:-} ]] || { echo "run_llama_cpp: unknown model $model; fix: llama or qwen3moe" >&2; exit 2; }
  cat >"$folder/$model.json" <<CONFIG
{
  "model": {${models[$model]}, "vocab_size": 50304, "max_positions": 2048},
  "tokenizer": {"type": "gpt2"},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 64},
  "train_batch_size": 1, "trainer": {"max_steps": 1}, "run": {"dir": "$folder/$model", "threads_per_rank": 2}, "checkpoint": {"every": 0}
}
CONFIG
  "$bench" train "$folder/$model.json" --quiet
  "$bench" convert "$folder/$model" "$folder/$model-bf16.gguf" --dtype bf16 --quiet
  "$bench" convert "$folder/$model" "$folder/$model-q8_0.gguf" --dtype q8_0 --quiet
done
# 64 tokens of GPT-2: a word with its space is one.
prompt=$(printf 'the%.0s' 1; printf ' the%.0s' $(seq 63))

# text_of MODEL WEIGHTS: tokens a second of ours after the prompt.
text_of() {
  "$bench" generate "$folder/$1" --prompt "$prompt" --weights "$2" --temperature 0 --ignore-eos --max-new-tokens 128 --threads 2 --json
}
export -f text_of
export bench folder prompt

for ((round = 1; round <= rounds; ++round)); do
  for model in "${chosen[@]}"; do
    case_of "$model: ours bf16" bash -c "text_of $model bf16"
    case_of "$model: llama.cpp bf16" "$peers" bench/peers/llama_cpp_generate.py "$folder/$model-bf16.gguf" "$prompt"
    case_of "$model: ours int8" bash -c "text_of $model int8"
    case_of "$model: llama.cpp q8_0" "$peers" bench/peers/llama_cpp_generate.py "$folder/$model-q8_0.gguf" "$prompt"
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    rates.setdefault(name, []).append(json.loads(line)["tokens_per_s"])
median = {name: statistics.median(values) for name, values in rates.items()}
print("\n| | tokens/s |\n|---|---|")
for name, value in median.items():
    print(f"| {name} | {value:.1f} |")
for model in sorted({name.split(":")[0] for name in median}):
    rate = lambda who: median[f"{model}: {who}"]
    print(f"\n{model}: ours / llama.cpp, bf16: {rate('ours bf16') / rate('llama.cpp bf16'):.2f}"
          f"   eight bits: {rate('ours int8') / rate('llama.cpp q8_0'):.2f}")
SUMMARY
