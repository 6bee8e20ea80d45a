#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Every family learns to classify labelled texts, on two ranks as on one.   usage: classify_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: classify_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# Texts of "a" and "b", labelled by the letter that occurs more often.
records() {
  local i run
  for ((i = 0; i < 64; ++i)); do
    run=$(seq $((3 + i % 5)))
    if ((i % 2)); then
      printf '{"text": "%sa", "label": "b"}\n' "$(printf 'b%.0s' $run)"
    else
      printf '{"text": "%sb", "label": "a"}\n' "$(printf 'a%.0s' $run)"
    fi
  done
}
# train FAMILY RANKS: trains in $box/FAMILY-RANKS.
train() {
  timeout 120 "$tessera" train "$box/$1.json" -n "$2" --set "run.dir=$box/$1-$2" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
learns_on_any_ranks() {
  records >"$box/texts.jsonl"
  cat >"$box/$1.json" <<EOF
{
  "model": {"family": "$1", "num_layers": 1, "hidden_size": 16, "num_heads": 2}, "task": "classify",
  "data": {"train": "$box/texts.jsonl", "sequence_length": 16, "validation_fraction": 0.25},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"max_steps": 40}, "eval": {"every": 40}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOF
  train "$1" 1
  train "$1" 2
  expect "equal runs" "$tessera" compare "$box/$1-1" "$box/$1-2"
  expect "the accuracy in the metrics" grep -q '"accuracy"' "$box/$1-2/metrics.jsonl"
  "$tessera" eval "$box/$1-2" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "every held-out text with its label" says "accuracy 1.0" "$box/eval"
}
claim "gpt2 learns labels, with the same bits on two ranks" learns_on_any_ranks gpt2
claim "llama learns labels, with the same bits on two ranks" learns_on_any_ranks llama
claim "bert learns labels, with the same bits on two ranks" learns_on_any_ranks bert
claims_done
