#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Encoders learn masked tokens of a text file, on two ranks as on one, and are then used for a classifier
# and written as a Hugging Face folder.   usage: masked_lm_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: masked_lm_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# A text in which each token can be predicted from its neighbours.
text() {
  local i
  for ((i = 0; i < 400; ++i)); do printf 'abcdefgh'; done
}
# config FAMILY MORE: writes $box/FAMILY.json. The mask token is the byte 7, which no text has.
config() {
  cat >"$box/$1.json" <<EOT
{
  "model": {"family": "$1", "num_layers": 1, "hidden_size": 32, "num_heads": 2},
  "task": {"type": "masked_lm", "params": {"mask_token_id": 7}},
  "data": {"train": "$box/text.txt", "sequence_length": 16, "validation_fraction": 0.1},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"max_steps": 60}, "eval": {"every": 30}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 30}
}
EOT
}
# train CONFIG NAME ARGUMENT...: trains in $box/NAME.
train() {
  timeout 120 "$tessera" train "$box/$1.json" --set "run.dir=$box/$2" "${@:3}" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
# Checks that the last validation loss in a run's metrics is below $2.
loss_is_below() {
  local loss
  loss=$(sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p; s/.*"validation_loss":\([0-9.e+-]*\).*/\1/p' "$box/$1/metrics.jsonl" | tail -1)
  awk -v loss="$loss" -v bound="$2" 'BEGIN { exit !(loss != "" && loss < bound) }' ||
    { echo "the loss of $1 is \"$loss\", not below $2" && tail -3 "$box/$1/metrics.jsonl" && return 1; }
}
# learns_on_any_ranks FAMILY ARGUMENT...
learns_on_any_ranks() {
  text >"$box/text.txt"
  config "$1"
  train "$1" one -n 1 "${@:2}"
  train "$1" two -n 2 "${@:2}"
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  expect "a loss far below that of a guess" loss_is_below two 1.0
  train "$1" half -n 2 --set trainer.max_steps=30 "${@:2}"
  train "$1" half -n 1 --resume auto "${@:2}"
  expect "the same after a resume on other ranks" "$tessera" compare "$box/one" "$box/half"
}
trains_in_every_layout() {
  text >"$box/text.txt"
  config bert
  train bert one -n 1 --set trainer.max_steps=6 --set model.num_layers=2
  train bert zero -n 2 --set trainer.max_steps=6 --set model.num_layers=2 --set zero_optimization.stage=3
  expect "ZeRO with the same bits" "$tessera" compare "$box/one" "$box/zero"
  train bert stages -n 2 --set trainer.max_steps=6 --set model.num_layers=2 --set parallel.pipeline=2
  expect "a pipeline with the same bits" "$tessera" compare "$box/one" "$box/stages"
  train bert tensor -n 2 --set trainer.max_steps=6 --set model.num_layers=2 --set parallel.tensor=2
  expect "six steps of ranks that share layers" grep -q '"step":6' "$box/tensor/metrics.jsonl"
}
# A masked language model has no log-probabilities of next tokens; the remedy that is named works.
score_names_the_loss() {
  ! "$tessera" score "$box/hf" "$box/text.txt" >"$box/out" 2>"$box/err" || return 1
  grep -q "tessera eval MODEL --data FILE --task masked_lm" "$box/err" || { cat "$box/err" && return 1; }
  "$tessera" eval "$box/hf" --data "$box/text.txt" --task '{"type": "masked_lm", "params": {"mask_token_id": 7}}' \
    --batches 1 >"$box/out" 2>&1 || { cat "$box/out" && return 1; }
}
begins_a_classifier() {
  text >"$box/text.txt"
  config bert
  train bert bert -n 1 --set trainer.max_steps=4
  "$tessera" convert "$box/bert" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the architecture" grep -q BertForMaskedLM "$box/hf/config.json"
  expect "no scores of next tokens" score_names_the_loss
  printf '{"text": "aab", "label": "a"}\n{"text": "bba", "label": "b"}\n' >"$box/texts.jsonl"
  cat >"$box/classify.json" <<EOT
{
  "model": {"from": "$box/hf"}, "task": "classify", "data": {"train": "$box/texts.jsonl", "sequence_length": 16},
  "train_batch_size": 2, "trainer": {"max_steps": 20}, "optimizer": {"params": {"lr": 1e-2}},
  "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
EOT
  train classify classifier -n 1
  expect "that the head is new" grep -q "classifier.weight" "$box/out" "$box/err"
  "$tessera" convert "$box/classifier" "$box/hf-classifier" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the classifier's architecture" grep -q BertForSequenceClassification "$box/hf-classifier/config.json"
  sed -i "s|$box/hf\"|$box/hf-classifier\"|" "$box/classify.json"
  train classify again -n 1
  expect "a head that goes on" refuses_nothing
}
refuses_nothing() { ! grep -q "starts from new weights" "$box/out" "$box/err"; }
# Documents of two kinds of sentences: those of one document share a letter, so that a second text of another
# document can be told from one that follows.
learns_pairs() {
  local d s
  for ((d = 0; d < 60; ++d)); do
    for ((s = 0; s < 6; ++s)); do printf "$( ((d % 2)) && echo abab || echo cdcd)%.0s" 1 && echo; done
    echo
  done >"$box/documents.txt"
  cat >"$box/pairs.json" <<EOT
{
  "model": {"family": "bert", "num_layers": 1, "hidden_size": 32, "num_heads": 2},
  "task": {"type": "masked_lm", "params": {"mask_token_id": 7, "pairs": "$1", "cls_token_id": 1, "sep_token_id": 2}},
  "data": {"train": "$box/documents.txt", "sequence_length": 16, "validation_fraction": 0.2},
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 5e-3}},
  "trainer": {"max_steps": 20}, "eval": {"every": 10}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 10}
}
EOT
  train pairs one -n 1
  train pairs two -n 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  train pairs half -n 2 --set trainer.max_steps=10
  train pairs half -n 1 --resume auto
  expect "the same after a resume on other ranks" "$tessera" compare "$box/one" "$box/half"
  expect "both accuracies" grep -q "mlm_accuracy.*$1_accuracy" "$box/one/metrics.jsonl"
  "$tessera" data "$box/pairs.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "what a sample is" says "pair_label" "$box/out"
  "$tessera" convert "$box/one" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the architecture" grep -q BertForPreTraining "$box/hf/config.json"
  expect "the head of the pairs" grep -q cls.seq_relationship.weight "$box/hf/model.safetensors"
  "$tessera" eval "$box/one" --threads 1 --data "$box/documents.txt" >"$box/first" 2>"$box/err" || { cat "$box/err" && exit 1; }
  sed -i "s|\"family\": \"bert\".*},|\"from\": \"$box/hf\"},|" "$box/pairs.json"
  train pairs again -n 1 --set trainer.max_steps=1 --set optimizer.params.lr=0
  expect "heads that go on" refuses_nothing
  "$tessera" eval "$box/again" --threads 1 --data "$box/documents.txt" >"$box/second" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the same losses of the folder's heads" cmp <(sed 's/|[^|]*$//' "$box/first") <(sed 's/|[^|]*$//' "$box/second")
}
refuses_what_does_not_fit() {
  text >"$box/text.txt"
  config bert
  "$tessera" train "$box/bert.json" --set task.type=pretrain --set task.params=null --set "run.dir=$box/run" \
    >"$box/out" 2>&1 && echo "an encoder was trained to predict the next token" && exit 1
  expect "what is wrong" says "causal_lm is a next-token objective" "$box/out"
  "$tessera" train "$box/bert.json" --set task.params=null --set "run.dir=$box/run" >"$box/out" 2>&1 &&
    echo "a tokenizer without a mask token was taken" && exit 1
  expect "the key to set" says "mask_token_id" "$box/out"
}
claim "bert learns hidden tokens, with the same bits on two ranks" learns_on_any_ranks bert
claim "roberta learns hidden tokens, with the same bits on two ranks" learns_on_any_ranks roberta
claim "modernbert learns hidden tokens, with the same bits on two ranks" learns_on_any_ranks modernbert \
  --set model.num_layers=2 --set model.init_std=0.1
claim "bert trains in every layout as on one rank" trains_in_every_layout
claim "a classifier begins with a model of masked tokens" begins_a_classifier
claim "bert learns whether a text follows, with the same bits on two ranks" learns_pairs nsp
claim "bert learns the order of two texts, with the same bits on two ranks" learns_pairs sop
claim "what cannot be trained is refused by name" refuses_what_does_not_fit
claims_done
