#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Evaluation on held-out text, and a model without the folder that it was initialized from.   usage: eval_test.sh
# PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: eval_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# train NAME DATA ARGUMENTS...: trains two steps in $box/NAME; its section `data` has the members DATA.
train() {
  local name=$1 data=$2
  shift 2
  cat >"$box/$name.json" <<EOF
{
  "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "dropout": 0},
  "data": {"sequence_length": 16, $data},
  "train_batch_size": 4, "trainer": {"max_steps": 2},
  "run": {"threads_per_rank": 1, "dir": "$box/$name"}, "eval": {"every": 2}, "checkpoint": {"every": 0}
}
EOF
  timeout 120 "$tessera" train "$box/$name.json" -n 1 "$@" >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
}
documents() {
  for i in $(seq "$1" "$2"); do
    printf '{"body": "text number %d, of its own length%*s"}\n' "$i" $((i % 7)) ""
  done
}
# losses RUN: prints the loss of its validation data, and of the same file given by name.
losses() {
  "$tessera" eval "$1" --threads 1 --json >"$box/its"
  "$tessera" eval "$1" --threads 1 --json --data "$box/held.jsonl" >"$box/named"
}

a_file_has_one_loss() {
  documents 1 40 >"$box/train.jsonl"
  documents 41 60 >"$box/held.jsonl"
  printf '{"body": "not \xff text"}\n' >>"$box/held.jsonl"
  local data="\"train\": \"$box/train.jsonl\", \"validation\": \"$box/held.jsonl\", \"text_field\": \"body\","
  data+='"invalid_utf8": "replace"'
  for how in '"pack": true' '"pack": false' '"separate_documents": true' '"stride": 5'; do
    rm -rf "$box/run"
    train run "$data, $how"
    losses "$box/run"
    expect "a loss with $how" says '"loss":' "$box/its"
    expect "the same by name with $how" cmp "$box/its" "$box/named"
  done
  rm "$box/train.jsonl"
  expect "the training data is not needed" "$tessera" eval "$box/run" --threads 1
}

numbers_at_the_edges() {
  train run '"train": "examples/data/shakespeare.txt", "validation_fraction": 0.001'
  "$tessera" eval "$box/run" --json --batches 9223372036854775807 >"$box/all"
  "$tessera" eval "$box/run" --json >"$box/whole"
  expect "all batches are all there are" cmp "$box/whole" "$box/all"
  expect "bits per byte" grep -q '"bits_per_byte":[0-9]' "$box/all"
  "$tessera" generate "$box/run" --json --max-new-tokens 0 --prompt A >"$box/json"
  expect "no tokens" says '"tokens":[]' "$box/json"
}

labels_without_text_have_no_bytes() {
  documents 1 40 >"$box/train.jsonl"
  "$tessera" tokenize "$box/train.jsonl" --text-field body --tokenizer gpt2 --out "$box/pair" >/dev/null || exit 1
  train run "\"train\": \"$box/pair\", \"validation_fraction\": 0.2" --set model.vocab_size=50304
  "$tessera" eval "$box/run" --json >"$box/json"
  expect "null" says '"bits_per_byte":null' "$box/json"
  "$tessera" eval "$box/run" >"$box/line"
  expect "a loss" says "perplexity" "$box/line"
  expect "and no bits per byte" bash -c "! grep -q 'bits per byte' '$box/line'"
}

a_run_stands_without_its_source() {
  local data='"train": "examples/data/shakespeare.txt", "validation_fraction": 0.001'
  train first "$data"
  sed -i 's/"num_layers.*"dropout"/"dropout"/' "$box/first.json"
  timeout 120 "$tessera" train "$box/first.json" -n 1 --set "run.dir=$box/second" --set "model={\"from\": \"$box/first\"}" \
    >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  rm -r "$box/first"
  (cd "$box" && "$tessera" generate second --prompt "A" --max-new-tokens 5 >/dev/null 2>"$box/err")
  expect "exit code 0, not $?" test $? = 0
  "$tessera" eval "$box/second" --json >"$box/json"
  expect "a loss" says '"loss":' "$box/json"
  timeout 120 "$tessera" train "$box/second/config.json" -n 1 --set trainer.max_steps=3 >"$box/out" 2>"$box/err"
  expect "the way on" says "--set model.from=null" "$box/err"
  timeout 120 "$tessera" train "$box/second/config.json" -n 1 --set trainer.max_steps=3 \
    --set model.from=null >"$box/out" 2>"$box/err"
  expect "exit code 0, not $?" test $? = 0
  expect "it goes on" says "step 3/3" "$box/out"
}

claim "a file has one loss, however it is named" a_file_has_one_loss
claim "all batches, and no tokens" numbers_at_the_edges
claim "labels without text have no bytes" labels_without_text_have_no_bytes
claim "a run is read without the model that it was started from" a_run_stands_without_its_source
claims_done
