#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures encoding on one thread: tessera, tiktoken and Hugging Face tokenizers alternately by GPT-2's BPE; then by WordPiece and
# Unigram tokenizers that are learned from the text, and with SPIECE also by a model of sentencepiece.
#
# usage: bench/run_tokenizer.sh [TEXT...]   PEERS: a Python that has tokenizers, tiktoken and sentencepiece (default
#                                             ~/peers/bin/python); SPIECE: a spiece.model
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source bench/by_turns.sh
ours tokenizer_bench
theirs tokenizers tiktoken sentencepiece
(($#)) || set -- examples/data/shakespeare.txt
for _ in 1 2 3; do
  python3 bench/peers/quiet_run.py -- "$bench" "$@"
  python3 bench/peers/quiet_run.py -- env RAYON_NUM_THREADS=1 "$peers" bench/peers/tokenizer_bench.py \
    share/gpt2/vocab.json share/gpt2/merges.txt "$@"
done
folder=$(mktemp -d)
trap 'rm -rf -- "$folder" "$results"' EXIT
files=()
for type in wordpiece unigram; do
  build/release/bin/tessera tokenizer train "$@" --type "$type" --vocab-size 8000 --out "$folder/$type" --quiet
  files+=("$folder/$type/tokenizer.json")
done
[[ -z ${SPIECE:-} ]] || files+=("$SPIECE")
for file in "${files[@]}"; do
  echo "$file"
  for _ in 1 2 3; do
    python3 bench/peers/quiet_run.py -- "$bench" --file "$file" "$@"
    python3 bench/peers/quiet_run.py -- env RAYON_NUM_THREADS=1 "$peers" bench/peers/tokenizer_bench.py --file "$file" "$@"
  done
done
