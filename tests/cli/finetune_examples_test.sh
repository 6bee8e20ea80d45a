#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 600
# The examples that fine-tune run as their first lines say, on data that they make.   usage: finetune_examples_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: finetune_examples_test.sh PROGRAM}")
examples=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../examples/finetune")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# run ARGUMENT...: the program in $box, or the end of the claim.
run() {
  (cd "$box" && timeout 200 "$tessera" "$@") >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
}
data() { /usr/bin/python3 "$examples/make_data.py" "$box/finetune-data"; }
# The losses of a run's steps fall: the last is below SHARE of the first.
learns() { # learns RUN SHARE
  /usr/bin/python3 - "$box/runs/$1/metrics.jsonl" "$2" <<'PYTHON'
import json, sys
losses = [line["loss"] for line in map(json.loads, open(sys.argv[1])) if "step" in line and "loss" in line]
print(losses[0], losses[-1])
assert losses[-1] < float(sys.argv[2]) * losses[0]
PYTHON
}
boolq() {
  data
  run train "$examples/boolq.json" -n 2
  expect "an accuracy for each of five epochs" test "$(grep -c '"accuracy"' "$box/runs/boolq/metrics.jsonl")" -ge 5
  # With a rate that a model from scratch learns at; the example's is one for a model that has learned.
  run train "$examples/boolq.json" --set run.dir=runs/fast --set scheduler.params.warmup_iter=4 --set optimizer.params.lr=1e-2
  expect "a loss that falls" learns fast 0.999
}
intents() {
  data
  run train "$examples/intents.json" -n 2
  expect "a loss that falls" learns intents 0.8
  run eval runs/intents
  expect "scores of a rare intent" says thanks "$box/out"
  run predict runs/intents finetune-data/intents-dev.csv --out said.jsonl
  expect "a prediction for each row" test "$(wc -l <"$box/said.jsonl")" = 60
}
answers() {
  data
  run data "$examples/sft.json"
  run train "$examples/sft.json"
  expect "a loss that falls" learns sft 0.7
  run convert runs/sft base
  run train "$examples/qlora.json" --set model.from=base -n 2
  expect "a loss that stays low" learns qlora 1.05
  run adapter merge runs/qlora merged
  run train "$examples/lora.json" --set model.from=base --set "data={\"train\": \"finetune-data/chat.jsonl\", \"sequence_length\": 128, \"validation_fraction\": 0.1}" \
    --set task=sft --set eval.every=0 --set trainer.max_steps=2
  run eval runs/sft --data finetune-data/chat.jsonl --generate 4 --max-new-tokens 8
  expect "scores of its answers" says rougeL "$box/out"
}
pictures() {
  data
  run train "$examples/vit.json"
  expect "a loss that falls" learns vit 0.8
  run predict runs/vit finetune-data/pictures-dev --out said.jsonl
  expect "a prediction for each picture" test "$(wc -l <"$box/said.jsonl")" = 16
}
summaries() {
  data
  run train "$examples/summaries.json" -n 2
  expect "a loss that falls" learns summaries 0.8
  run eval runs/summaries --data finetune-data/articles.jsonl --generate 5 --json
  expect "a score" says '"rougeL"' "$box/out"
}
claim "BoolQ as in ModelCenter's quick start" boolq
claim "six intents with a balanced loss and history" intents
claim "answers through a chat template, then adapters with whole and narrow weights" answers
claim "pictures in folders" pictures
claim "summaries of articles" summaries
claims_done
