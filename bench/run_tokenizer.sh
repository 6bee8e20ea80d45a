#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures GPT-2 BPE encoding on one thread: tessera, tiktoken and Hugging Face tokenizers, alternately.
#
# usage: bench/run_tokenizer.sh [TEXT...]   PEERS: a Python that has tokenizers and tiktoken (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source bench/by_turns.sh
ours tokenizer_bench
theirs tokenizers tiktoken
(($#)) || set -- examples/data/shakespeare.txt
for _ in 1 2 3; do
  python3 bench/peers/quiet_run.py -- "$bench" "$@"
  python3 bench/peers/quiet_run.py -- env RAYON_NUM_THREADS=1 "$peers" bench/peers/tokenizer_bench.py \
    share/gpt2/vocab.json share/gpt2/merges.txt "$@"
done
