#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures greedy text of a Llama of 125M on two threads, one text: tessera and llama.cpp alternately, with weights in bf16
# and in eight bits (int8 here, Q8_0 there).
#
# usage: bench/run_llama_cpp.sh [ROUNDS]   PEERS: a Python that has llama-cpp-python (default ~/peers/bin/python); its sdist builds
#                                            llama.cpp for this machine: ~/peers/bin/pip install llama-cpp-python
#
# The model is random: one training step is made with it, and both programs read what tessera converts. A prompt of 64 tokens,
# 128 new ones.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
source bench/by_turns.sh
ours tessera
theirs llama_cpp
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT

cat >"$folder/llama.json" <<CONFIG
{
  "model": {"family": "llama", "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048,
    "vocab_size": 50304, "max_positions": 2048},
  "tokenizer": {"type": "gpt2"},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 64},
  "train_batch_size": 1, "trainer": {"max_steps": 1}, "run": {"dir": "$folder/run", "threads_per_rank": 2}, "checkpoint": {"every": 0}
}
CONFIG
"$bench" train "$folder/llama.json" --quiet
"$bench" convert "$folder/run" "$folder/bf16.gguf" --dtype bf16 --quiet
"$bench" convert "$folder/run" "$folder/q8_0.gguf" --dtype q8_0 --quiet
# 64 tokens of GPT-2: a word with its space is one.
prompt=$(printf 'the%.0s' 1; printf ' the%.0s' $(seq 63))

# text_of WEIGHTS: tokens a second of ours after the prompt.
text_of() {
  "$bench" generate "$folder/run" --prompt "$prompt" --weights "$1" --temperature 0 --ignore-eos --max-new-tokens 128 --threads 2 --json
}
export -f text_of
export bench folder prompt

for ((round = 1; round <= rounds; ++round)); do
  case_of "ours bf16" bash -c "text_of bf16"
  case_of "llama.cpp bf16" "$peers" bench/peers/llama_cpp_generate.py "$folder/bf16.gguf" "$prompt"
  case_of "ours int8" bash -c "text_of int8"
  case_of "llama.cpp q8_0" "$peers" bench/peers/llama_cpp_generate.py "$folder/q8_0.gguf" "$prompt"
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
print(f"\nours / llama.cpp, bf16: {median['ours bf16'] / median['llama.cpp bf16']:.2f}"
      f"   eight bits: {median['ours int8'] / median['llama.cpp q8_0']:.2f}")
SUMMARY
