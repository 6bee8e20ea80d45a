#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# An encoder with a decoder learns to answer texts, on two ranks as on one, generates the answers, and is written as a
# Hugging Face folder.   usage: seq2seq_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: seq2seq_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# Texts of "a" and "b", answered by a word for the letter that occurs more often.
pairs() {
  local i run
  for ((i = 0; i < 64; ++i)); do
    run=$(seq $((3 + i % 5)))
    if ((i % 2)); then
      printf '{"source": "%sa", "target": "many b"}\n' "$(printf 'b%.0s' $run)"
    else
      printf '{"source": "%sb", "target": "a wins"}\n' "$(printf 'a%.0s' $run)"
    fi
  done
}
# config FAMILY: writes $box/pairs.jsonl and $box/run.json.
config() {
  pairs >"$box/pairs.jsonl"
  cat >"$box/run.json" <<EOF
{
  "model": {"family": "$1", "num_layers": 1, "hidden_size": 32, "num_heads": 2},
  "task": {"type": "seq2seq", "params": {"target_length": 8}},
  "data": {"train": "$box/pairs.jsonl", "sequence_length": 12, "validation_fraction": 0.25},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 5e-3}},
  "trainer": {"max_steps": 120}, "eval": {"every": 30}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 30}
}
EOF
}
# train NAME ARGUMENT...: trains in $box/NAME.
train() {
  timeout 120 "$tessera" train "$box/run.json" --set "run.dir=$box/$1" "${@:2}" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
# answer MODEL PROMPT ARGUMENT...: writes the model's answer to $box/answer.
answer() {
  "$tessera" generate "$1" --prompt "$2" --temperature 0 "${@:3}" >"$box/answer" 2>"$box/err" ||
    { cat "$box/answer" "$box/err" && exit 1; }
}
learns_on_any_ranks() {
  config "$1"
  train one -n 1
  train two -n 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  train half -n 2 --set trainer.max_steps=30
  train half -n 1 --resume auto
  expect "the same after a resume on other ranks" "$tessera" compare "$box/one" "$box/half"
  answer "$box/two" bbbba
  expect "the answer to many b" says "many b" "$box/answer"
  answer "$box/two" aaaab --beams 3
  expect "the answer of a beam search to many a" says "a wins" "$box/answer"
  answer "$box/two" aaab -n 2
  expect "the answer of two ranks" says "a wins" "$box/answer"
  expect "the loss of the pairs as their likelihood" scores_are_the_loss "$box/two"
}
# scores_are_the_loss MODEL: of all pairs, on one rank and on two that share layers.
scores_are_the_loss() {
  "$tessera" eval "$1" --data "$box/pairs.jsonl" --json >"$box/loss" 2>"$box/err" || { cat "$box/err" && return 1; }
  local ranks
  for ranks in "-n 1" "-n 2 --tensor 2"; do
    # shellcheck disable=SC2086
    "$tessera" score "$1" "$box/pairs.jsonl" --quiet $ranks >"$box/scores" 2>"$box/err" || { cat "$box/err" && return 1; }
    python3 - "$box/loss" "$box/scores" <<'PY' || return 1
import json, sys
loss = json.load(open(sys.argv[1]))["loss"]
*lines, last = map(json.loads, open(sys.argv[2]))
assert len(lines) == last["lines"] == 64
assert abs(loss + last["log_probability"] / last["tokens"]) < 1e-4, (loss, last)
PY
  done
}
trains_in_every_layout() {
  config t5
  train one -n 1 --set trainer.max_steps=6
  train zero -n 2 --set trainer.max_steps=6 --set zero_optimization.stage=3
  expect "ZeRO with the same bits" "$tessera" compare "$box/one" "$box/zero"
  train stages -n 2 --set trainer.max_steps=6 --set parallel.pipeline=2
  expect "a pipeline with the same bits" "$tessera" compare "$box/one" "$box/stages"
  train tensor -n 2 --set trainer.max_steps=6 --set parallel.tensor=2
  expect "six steps of ranks that share layers" grep -q '"step":6' "$box/tensor/metrics.jsonl"
  train tokens -n 2 --set trainer.max_steps=6 --set parallel.context=2
  expect "six steps of ranks that share tokens" grep -q '"step":6' "$box/tokens/metrics.jsonl"
}
goes_on_as_a_folder() {
  config mt5
  train run -n 1
  "$tessera" convert "$box/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the architecture" grep -q MT5ForConditionalGeneration "$box/hf/config.json"
  answer "$box/hf" bbbba
  expect "the answer of the folder" says "many b" "$box/answer"
  train tuned -n 1 --set "model={\"from\": \"$box/hf\"}" --set trainer.max_steps=1
  expect "a loss that is low from the first step" first_loss_is_below tuned 0.5
}
first_loss_is_below() {
  local loss
  loss=$(sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$box/$1/metrics.jsonl" | head -1)
  awk -v loss="$loss" -v bound="$2" 'BEGIN { exit !(loss != "" && loss < bound) }' ||
    { echo "the first loss of $1 is \"$loss\"" && head -3 "$box/$1/metrics.jsonl" && return 1; }
}
# A stream of text, of which the encoder lacks spans.
learns_spans() {
  config t5
  for _ in {1..400}; do printf 'abcdefgh'; done >"$box/text.txt"
  local spans=(--set "data.train=$box/text.txt" --set task.type=span_corruption --set 'task.params={"sentinel_id": 200}' --set trainer.max_steps=20
    --set eval.every=10 --set checkpoint.every=10)
  train one -n 1 "${spans[@]}"
  train two -n 2 "${spans[@]}"
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  train half -n 2 "${spans[@]}" --set trainer.max_steps=10
  train half -n 1 "${spans[@]}" --resume auto
  expect "the same after a resume on other ranks" "$tessera" compare "$box/one" "$box/half"
  "$tessera" data "$box/run.json" "${spans[@]}" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
}
refuses_what_does_not_fit() {
  config t5
  train run -n 1 --set trainer.max_steps=1
  echo "a text" >"$box/lines.txt"
  "$tessera" score "$box/run" "$box/lines.txt" >"$box/out" 2>&1 && echo "one text was scored" && exit 1
  expect "which two texts are needed" says '"target"' "$box/out"
  "$tessera" train "$box/run.json" --set task.type=pretrain --set task.params=null --set "run.dir=$box/run" \
    >"$box/out" 2>&1 && echo "it was trained to continue a text" && exit 1
  expect "which task fits" says "seq2seq" "$box/out"
  "$tessera" train "$box/run.json" --set model.family=gpt2 --set "run.dir=$box/run" >"$box/out" 2>&1 &&
    echo "a decoder answered texts" && exit 1
  expect "which family fits" says "the family of an encoder-decoder" "$box/out"
}
claim "t5 learns answers, with the same bits on two ranks" learns_on_any_ranks t5
claim "mt5 learns answers, with the same bits on two ranks" learns_on_any_ranks mt5
claim "t5 trains through ZeRO, a pipeline, tensor and context parallelism" trains_in_every_layout
claim "t5 learns the spans that its encoder lacks, with the same bits on two ranks" learns_spans
claim "mt5 continues as a Hugging Face folder" goes_on_as_a_folder
claim "tasks, families and layouts that do not fit are refused" refuses_what_does_not_fit
claims_done
