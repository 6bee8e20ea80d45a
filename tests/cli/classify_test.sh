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
  expect "the confusion matrix as a picture" grep -q "said of" "$box/$1-2/confusion.svg"
  expect "F1 in the metrics" grep -q '"f1"' "$box/$1-2/metrics.jsonl"
  expect "each class with its scores" grep -Eq '^ *b +1.0000 +1.0000 +1.0000 +8' "$box/eval"
  [[ $1 == gpt2 ]] || return 0
  predicts "$box/$1-2"
  "$tessera" convert "$box/$1-2" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" predict "$box/folder" "$box/new.csv" --length 16 --out "$box/folder.jsonl" --quiet || exit 1
  expect "the same of the written folder" cmp "$box/folder.jsonl" "$box/said.jsonl"
}
# predicts RUN: labels of new texts, on two ranks as on one, also when a file is continued.
predicts() {
  local i
  { echo "id,text" && for ((i = 0; i < 21; ++i)); do echo "$i,$( ((i % 3)) && echo aaab || echo bbba)"; done; } >"$box/new.csv"
  "$tessera" predict "$1" "$box/new.csv" --out "$box/said.jsonl" --quiet || exit 1
  expect "a line for each record" test "$(wc -l <"$box/said.jsonl")" -eq 21
  expect "the first label" says '{"row":0,"label":"b",' <(head -1 "$box/said.jsonl")
  expect "the second label" says '{"row":1,"label":"a",' <(sed -n 2p "$box/said.jsonl")
  "$tessera" predict "$1" "$box/new.csv" -n 2 --out "$box/two.jsonl" --quiet || exit 1
  expect "the same of two ranks" cmp "$box/said.jsonl" "$box/two.jsonl"
  head -c 500 "$box/said.jsonl" >"$box/half.jsonl"
  "$tessera" predict "$1" "$box/new.csv" --out "$box/half.jsonl" --quiet || exit 1
  expect "the same where half was there" cmp "$box/said.jsonl" "$box/half.jsonl"
  echo '{"row": 7}' >"$box/other.jsonl"
  "$tessera" predict "$1" "$box/new.csv" --out "$box/other.jsonl" 2>"$box/err"
  expect "exit code 3 for another file" test $? -eq 3
}
# A classifier starts from a run that was trained on text; its head is new.
begins_with_a_language_model() {
  records >"$box/texts.jsonl"
  cat >"$box/base.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2}, "data": {"train": "$box/texts.jsonl", "sequence_length": 16},
  "train_batch_size": 4, "trainer": {"max_steps": 1}, "run": {"dir": "$box/base", "threads_per_rank": 1}
}
EOF
  timeout 60 "$tessera" train "$box/base.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" init --task classify --from "$box/base" --data "$box/texts.jsonl" >"$box/new.json" || exit 1
  timeout 60 "$tessera" train "$box/new.json" -n 2 --set "run.dir=$box/new" --set data.sequence_length=16 --set trainer.epochs=1 \
    >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "a note of the new head" says "that for sequence_classification begins anew (score.weight)" "$box/out"
  expect "a best checkpoint" test -s "$box/new/checkpoints/best"
}
claim "gpt2 learns labels, with the same bits on two ranks" learns_on_any_ranks gpt2
claim "llama learns labels, with the same bits on two ranks" learns_on_any_ranks llama
claim "bert learns labels, with the same bits on two ranks" learns_on_any_ranks bert
claim "a run of text becomes a classifier" begins_with_a_language_model
claims_done
