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
  "data": {"train": "$box/texts.jsonl", "sequence_length": 16, "validation_fraction": 0.25, "on_bad_record": "skip"},
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
  needs_no_training_data "$box/$1-2"
  "$tessera" convert "$box/$1-2" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" predict "$box/folder" "$box/new.csv" --out "$box/folder.jsonl" --quiet || exit 1
  expect "the same of the written folder" cmp "$box/folder.jsonl" "$box/said.jsonl"
  skips_bad_records "$box/folder"
  evaluates_tables "$box/folder"
  generates_nothing "$box/folder"
}
# generates_nothing FOLDER: a classifier is refused before a template or a file of prompts is asked for.
generates_nothing() {
  local how
  for how in chat "generate --prompt a" "generate --samples 2"; do
    # shellcheck disable=SC2086  # words of a command
    "$tessera" $how "$1" </dev/null >"$box/out" 2>"$box/err" && echo "$how: a classifier made text" && exit 1
    expect "$how: what it is" says "sequence_classification does not generate text" "$box/err"
    expect "$how: the command for it" says "tessera predict $1 FILE" "$box/err"
  done
}
# skips_bad_records FOLDER: a model without a run has no key data.on_bad_record, but an option.
skips_bad_records() {
  local command
  printf 'text,label\n,a\naaab,a\nbbba,b\n,b\n' >"$box/holes.csv"
  for command in predict eval; do
    local how=("$1" $([[ $command == eval ]] && echo --data) "$box/holes.csv" --threads 1)
    "$tessera" $command "${how[@]}" >"$box/out" 2>"$box/err"
    expect "$command: exit code 3 for an empty text" test $? -eq 3
    expect "$command: its place" says 'holes.csv:2: "text" is empty' "$box/err"
    expect "$command: an option that it has" says "--on-bad-record skip leaves such records out" "$box/err"
    "$tessera" $command "${how[@]}" --on-bad-record skip >"$box/$command" 2>"$box/err" || { cat "$box/err" && exit 1; }
    expect "$command: how many were skipped" says "2 of 4 records cannot be read" "$box/err"
    "$tessera" $command "${how[@]}" --on-bad-record ignore >"$box/out" 2>"$box/err"
    expect "$command: exit code 2 for another word" test $? -eq 2
  done
  expect "null by position" test "$(sed 's/^{"row":\([0-9]\),"label":\([^,]*\),.*/\1\2/' "$box/predict" | xargs)" = "0null 1a 2b 3null"
  expect "the other records" says "accuracy 1.0" "$box/eval"
  "$tessera" predict "$1" "$box/holes.csv" --on-bad-record skip --out "$box/holes.out.csv" --quiet 2>"$box/err" || exit 1
  expect "empty cells under the columns of the others" grep -q '^0,,,,' "$box/holes.out.csv"
}
# evaluates_tables FOLDER: a classifier of "a" and "b" on tables of GLUE, whose labels are numbers or names.
evaluates_tables() {
  printf 'sentence\tlabel\naaab\t0\nbbba\t1\nbbbba\t0\naaaab\t0\n' >"$box/dev.tsv"
  "$tessera" eval "$1" --data "$box/dev.tsv" --threads 1 --json >"$box/sst" || exit 1
  expect "three of four sentences" says '"accuracy":0.75' "$box/sst"
  printf 'index\tquestion\tsentence\tlabel\n0\taaaa\tab\ta\n1\tbbbb\tba\tb\n' >"$box/dev.tsv"
  "$tessera" eval "$1" --data "$box/dev.tsv" --task '{"type": "classify", "params": {"labels": ["a", "b"]}}' --threads 1 --json \
    >"$box/qnli" || exit 1
  expect "both pairs" says '"accuracy":1' "$box/qnli"
  "$tessera" eval "$1" --data "$box/dev.tsv" --task regression >"$box/out" 2>"$box/err" && echo "names are not numbers" && exit 1
  expect "the row that is not a number" says "dev.tsv:2" "$box/err"
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
  sed 's/aaab/bbba/' "$box/new.csv" >"$box/others.csv"
  "$tessera" predict "$1" "$box/others.csv" --out "$box/half.jsonl" --quiet || exit 1
  expect "a finished file is replaced" says '{"row":1,"label":"b",' <(sed -n 2p "$box/half.jsonl")
  "$tessera" predict "$1" "$box/said.jsonl" --out "$box/said.jsonl" 2>"$box/err"
  expect "exit code 2 where the output is the input" test $? -eq 2
  cp "$box/new.csv" "$box/own.csv"
  "$tessera" predict "$1" "$box/own.csv[:2]" --out "$box/own.csv" 2>"$box/err"
  expect "exit code 2 where the input is a slice of the output" test $? -eq 2
  expect "the input as it was" cmp "$box/new.csv" "$box/own.csv"
  printf 'id,text\n7,aaab\n8,\n9,bbba\n' >"$box/gap.csv"
  "$tessera" predict "$1" "$box/gap.csv" --out "$box/gap.jsonl" --quiet || exit 1
  expect "a line for the record without a text" says '{"row":1,"label":null,' <(sed -n 2p "$box/gap.jsonl")
  expect "with its columns" says '"id":8,' <(sed -n 2p "$box/gap.jsonl")
  expect "the record after it" says '{"row":2,"label":"b",' <(sed -n 3p "$box/gap.jsonl")
  echo '{"row": 7}' >"$box/other.jsonl"
  "$tessera" predict "$1" "$box/new.csv" --out "$box/other.jsonl" 2>"$box/err"
  expect "exit code 3 for another file" test $? -eq 3
}
# needs_no_training_data RUN: the classes are those of the model, wherever the data of the training is.
needs_no_training_data() {
  printf '{"note": "aaab", "y": "a"}\n{"note": "bbba", "y": "b"}\n' >"$box/notes.jsonl"
  mv "$box/texts.jsonl" "$box/elsewhere.jsonl"
  "$tessera" predict "$1" "$box/new.csv" --out "$box/alone.jsonl" --quiet || exit 1
  expect "the same predictions without the data" cmp "$box/said.jsonl" "$box/alone.jsonl"
  "$tessera" eval "$1" --data "$box/notes.jsonl" --map '{"text": "note", "label": "y"}' >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "the fields that are named" says "accuracy 1.0" "$box/eval"
  mv "$box/elsewhere.jsonl" "$box/texts.jsonl"
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
  expect "a note of the new head" says "that for sequence_classification starts from new weights (score.weight)" "$box/out"
  expect "a best checkpoint" test -s "$box/new/checkpoints/best"
}
# Words that are tagged by their letter.
tags_words() {
  local i
  for ((i = 0; i < 64; ++i)); do
    printf '{"tokens": ["%s", "%s", "c"], "tags": ["A", "B", "O"]}\n' "$(printf 'a%.0s' $(seq $((1 + i % 3))))" "$(printf 'b%.0s' $(seq $((1 + i % 4))))"
  done >"$box/words.jsonl"
  cat >"$box/tag.json" <<EOF
{
  "model": {"family": "bert", "num_layers": 1, "hidden_size": 16, "num_heads": 2}, "task": "tag",
  "data": {"train": "$box/words.jsonl", "sequence_length": 16, "validation_fraction": 0.25},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"max_steps": 30}, "eval": {"every": 30}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOF
  train tag 1
  train tag 2
  expect "equal runs" "$tessera" compare "$box/tag-1" "$box/tag-2"
  "$tessera" eval "$box/tag-2" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "every held-out word with its tag" says "accuracy 1.0" "$box/eval"
  echo '{"tokens": ["aaa", "bb", "c"]}' >"$box/new.jsonl"
  "$tessera" predict "$box/tag-2" "$box/new.jsonl" --out "$box/said.jsonl" --quiet || exit 1
  expect "a tag for each word" says '"tags":["A","B","O"]' "$box/said.jsonl"
  cross_validates
}
# Each half of the words is held out once; the second time, both trainings are finished.
cross_validates() {
  local time
  for time in 1 2; do
    timeout 120 "$tessera" train "$box/tag.json" --folds 2 --set "run.dir=$box/folds" --set data.validation_fraction=0 \
      --set trainer.max_steps=2 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
    expect "a row of means" grep -Eq '^ *mean +[0-9.]+ +[0-9.]+' "$box/out"
  done
  expect "a run for each fold" grep -q '"fold": *2' "$box/folds/fold-2/config.json"
  expect "the table as a file" grep -q '"sd"' "$box/folds/folds.json"
  "$tessera" eval "$box/folds/fold-1" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "an evaluation of what a fold held out" says "96 labels" "$box/eval"
}
# Texts whose number is half of how often they have an "a".
learns_numbers() {
  local i n steps
  { echo "note,score" && for ((i = 0; i < 64; ++i)); do
    n=$((1 + i * 5 % 8))
    echo "$(printf 'a%.0s' $(seq $n))bbbbbbbb,$((n / 2)).$((n % 2 * 5))"
  done; } >"$box/numbers.csv"
  cat >"$box/numbers.json" <<EOF
{
  "model": {"family": "bert", "num_layers": 1, "hidden_size": 16, "num_heads": 2, "dropout": 0}, "task": "regression",
  "data": {"train": "$box/numbers.csv", "map": {"text": "note"}, "sequence_length": 16, "validation_fraction": 0.25},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"max_steps": 60}, "eval": {"every": 30}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 30}
}
EOF
  train numbers 1
  train numbers 2
  expect "equal runs" "$tessera" compare "$box/numbers-1" "$box/numbers-2"
  for steps in 30 60; do
    timeout 120 "$tessera" train "$box/numbers.json" -n $((steps / 30)) --set "run.dir=$box/half" --set trainer.max_steps=$steps \
      >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  done
  expect "the same after a resume on other ranks" "$tessera" compare "$box/numbers-1" "$box/half"
  expect "numbers near those of the file" awk -F'"r2":' 'NF > 1 { last = $2 + 0 } END { exit !(last > 0.5) }' "$box/numbers-2/metrics.jsonl"
  "$tessera" predict "$box/numbers-2" "$box/numbers.csv" --out "$box/said.jsonl" --quiet || exit 1
  "$tessera" convert "$box/numbers-2" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" predict "$box/folder" "$box/numbers.csv" --out "$box/folder.jsonl" --quiet || exit 1
  expect "the same of the written folder, which has kept fields and length" cmp "$box/folder.jsonl" "$box/said.jsonl"
  "$tessera" eval "$box/folder" --data "$box/numbers.csv" --batches 2 --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "the part that was evaluated" says "of the first 16 of 64 samples" "$box/eval"
  { echo "note" && echo "aabbbbbbbb"; } >"$box/new.csv"
  expect "a prediction for records without their label" "$tessera" predict "$box/numbers-2" "$box/new.csv" --out "$box/new.jsonl" --quiet
}
# Two labels of each text, the letter and whether there are many: one head each.
learns_two_labels() {
  local i
  for ((i = 0; i < 64; ++i)); do
    printf '{"text": "%s", "letter": "%s", "many": "%s"}\n' \
      "$( ((i % 2)) && echo bbb || echo aaa)$( ((i % 4 < 2)) && echo yyy || echo xxx)" \
      "$( ((i % 2)) && echo b || echo a)" "$( ((i % 4 < 2)) && echo yes || echo no)"
  done >"$box/texts.jsonl"
  cat >"$box/bert.json" <<EOF
{
  "model": {"family": "bert", "num_layers": 1, "hidden_size": 32, "num_heads": 2}, "task": "classify",
  "classify": {"heads": {"letter": null, "many": ["no", "yes"]}, "class_balance": "inverse"},
  "data": {"train": "$box/texts.jsonl", "sequence_length": 16, "validation_fraction": 0.25},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 2e-3}},
  "trainer": {"max_steps": 200}, "eval": {"every": 200}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOF
  train bert 1
  train bert 2
  expect "equal runs" "$tessera" compare "$box/bert-1" "$box/bert-2"
  "$tessera" eval "$box/bert-2" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "the accuracy of the letter" says "letter_accuracy 1.0" "$box/eval"
  expect "the accuracy of the other" says "many_accuracy 1.0" "$box/eval"
  expect "F1 of a head in the metrics" grep -q '"many_f1"' "$box/bert-2/metrics.jsonl"
  echo '{"text": "bbbyyy"}' >"$box/new.jsonl"
  "$tessera" predict "$box/bert-2" "$box/new.jsonl" --out "$box/said.jsonl" --quiet || exit 1
  expect "both labels" grep -q '"letter":{"label":"b",.*"many":{"label":"yes",' "$box/said.jsonl"
  mv "$box/texts.jsonl" "$box/elsewhere.jsonl"
  "$tessera" eval "$box/bert-2" --data "$box/elsewhere.jsonl" --threads 1 >"$box/eval" 2>&1 || { cat "$box/eval" && exit 1; }
  expect "the same without the training data" says "many_accuracy 1.0" "$box/eval"
  "$tessera" convert "$box/bert-2" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" predict "$box/folder" "$box/new.jsonl" --out "$box/folder.jsonl" --quiet || exit 1
  expect "the same of the written folder" cmp "$box/folder.jsonl" "$box/said.jsonl"
}
f1_in() { grep -o 'f1_macro [0-9.]*' "$box/$1" | cut -d' ' -f2; }
# A rare label, which is learned too weakly to be above one half: the threshold with the best F1 finds it.
keeps_thresholds() {
  local i
  for ((i = 0; i < 64; ++i)); do
    printf '{"text": "%s%s", "label": [%s"any"]}\n' "$( ((i % 4)) && echo a || echo b)" \
      "$(printf 'c%.0s' $(seq $((1 + i % 5))))" "$( ((i % 8)) || echo '"rare", ')"
  done >"$box/texts.jsonl"
  cat >"$box/bert.json" <<EOF
{
  "model": {"family": "bert", "num_layers": 1, "hidden_size": 16, "num_heads": 2},
  "task": "classify", "classify": {"multi_label": true},
  "data": {"train": "$box/texts.jsonl", "validation": "$box/texts.jsonl", "sequence_length": 16},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 3e-3}},
  "trainer": {"max_steps": 30, "seed": 77}, "eval": {"every": 30}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOF
  train bert 1
  expect "the classes before the start" says '"any" 64, "rare" 8' "$box/out"
  "$tessera" eval "$box/bert-1" --threads 1 >"$box/before" 2>&1 || { cat "$box/before" && exit 1; }
  "$tessera" eval "$box/bert-1" --threads 1 --thresholds >"$box/chosen" 2>&1 || { cat "$box/chosen" && exit 1; }
  expect "a threshold of each label" says "rare: above 0." "$box/chosen"
  "$tessera" eval "$box/bert-1" -n 2 --threads 1 >"$box/after" 2>&1 || { cat "$box/after" && exit 1; }
  expect "a better F1 with it" awk -v a="$(f1_in before)" -v b="$(f1_in after)" 'BEGIN { exit !(b > a) }'
  "$tessera" predict "$box/bert-1" "$box/texts.jsonl" --out "$box/said.jsonl" --quiet || exit 1
  expect "the rare label in predictions" grep -q '"labels":\["any","rare"\]' "$box/said.jsonl"
  "$tessera" convert "$box/bert-1" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "thresholds, seed and labels in config.json" test "$(grep -cE '"(thresholds|seed|id2label|label2id)"' "$box/folder/config.json")" -eq 4
  expect "the seed" grep -q '"seed": 77' "$box/folder/config.json"
  "$tessera" predict "$box/folder" "$box/texts.jsonl" --length 16 --out "$box/folder.jsonl" --quiet || exit 1
  expect "the same of the written folder" cmp "$box/folder.jsonl" "$box/said.jsonl"
  "$tessera" eval "$box/folder" --data "$box/texts.jsonl" --threads 1 >"$box/of_folder" 2>&1 || { cat "$box/of_folder" && exit 1; }
  expect "the same F1 of the folder" test "$(f1_in after)" = "$(f1_in of_folder)"
}
claim "gpt2 learns labels, with the same bits on two ranks" learns_on_any_ranks gpt2
claim "llama learns labels, with the same bits on two ranks" learns_on_any_ranks llama
claim "bert learns labels, with the same bits on two ranks" learns_on_any_ranks bert
claim "two labels of a text are learned by two heads" learns_two_labels
claim "bert learns numbers, with the same bits on two ranks and after a resume" learns_numbers
claim "thresholds are chosen, kept, exported and used" keeps_thresholds
claim "a run of text becomes a classifier" begins_with_a_language_model
claim "a tagger of words learns, with the same bits on two ranks" tags_words
claims_done
