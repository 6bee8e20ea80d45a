#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPT-2 BPE encoding on one thread: ours, and tiktoken's and Hugging Face's, by turns.
#
# usage: bench/run_tokenizer.sh [TEXT...]   PEERS: a Python that has tokenizers and tiktoken (default ~/peers/bin/python)
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
peers=${PEERS:-$HOME/peers/bin/python}
bench=build/release/bin/tokenizer_bench
(($#)) || set -- examples/data/shakespeare.txt
[[ -x $bench ]] || { echo "run_tokenizer: $bench is not built; fix: tools/build.sh release tokenizer_bench" >&2; exit 8; }
[[ -x $peers ]] || { echo "run_tokenizer: no $peers; fix: python3 -m venv ~/peers && ~/peers/bin/pip install tokenizers tiktoken" >&2; exit 8; }
for _ in 1 2 3; do
  python3 bench/peers/quiet_run.py -- "$bench" "$@"
  python3 bench/peers/quiet_run.py -- env RAYON_NUM_THREADS=1 "$peers" bench/peers/tokenizer_bench.py \
    share/gpt2/vocab.json share/gpt2/merges.txt "$@"
done
