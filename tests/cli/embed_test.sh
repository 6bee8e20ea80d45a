#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# Embeddings of a file's lines by encoders and decoders, with the settings in folders of sentence-transformers.   usage: embed_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: embed_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# model FAMILY TASK: trains a tiny model for two steps in $box/run.
model() {
  for ((i = 0; i < 100; ++i)); do printf 'some text %d ' "$i"; done >"$box/text.txt"
  cat >"$box/train.json" <<EOT
{
  "model": {"family": "$1", "num_layers": 1, "hidden_size": 16, "num_heads": 2}, "task": $2,
  "data": {"train": "$box/text.txt", "sequence_length": 16}, "train_batch_size": 4, "trainer": {"max_steps": 2},
  "run": {"threads_per_rank": 1, "dir": "$box/run"}
}
EOT
  timeout 120 "$tessera" train "$box/train.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  printf 'first\nthe second line\nc\n' >"$box/lines.txt"
  printf '{"body": "first"}\n{"body": "the second line"}\n{"body": "c"}\n' >"$box/lines.jsonl"
}
readonly kMasked='{"type": "masked_lm", "params": {"mask_token_id": 7}}'
# embeds NAME ARGUMENT...: writes $box/NAME.
embeds() {
  timeout 60 "$tessera" embed "${@:2}" --threads 1 --out "$box/$1" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
}
same() { cmp "$box/$1" "$box/$2"; }
differs() { ! cmp -s "$box/$1" "$box/$2"; }

writes_lines_and_matrices() {
  model "$1" "$2"
  embeds one.jsonl "$box/run" "$box/lines.txt"
  expect "what was done" says "wrote 3 embeddings of 16 numbers" "$box/out"
  expect "a line for each text" test "$(wc -l <"$box/one.jsonl")" = 3
  embeds two.jsonl "$box/run" "$box/lines.jsonl" --field body
  expect "the same of the members of a .jsonl" same one.jsonl two.jsonl
  embeds two.jsonl "$box/run" "$box/lines.txt" -n 2
  expect "the same on two ranks" same one.jsonl two.jsonl
  embeds one.npy "$box/run" "$box/lines.txt"
  expect "a matrix of 3 x 16 numbers" test "$(stat -c %s "$box/one.npy")" = $((128 + 3 * 16 * 4))
  "$tessera" embed "$box/run" "$box/lines.txt" --threads 1 >"$box/printed" || exit 1
  expect "the same on standard output" same one.jsonl printed
  "$tessera" convert "$box/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  embeds two.jsonl "$box/hf" "$box/lines.txt"
  expect "the same of a Hugging Face folder" same one.jsonl two.jsonl
}
# The sums of the squares of each line's numbers.
lengths() { tr -d '{}"[]a-z:,' <"$box/$1" | awk '{s = 0; for (i = 1; i <= NF; ++i) s += $i * $i; printf "%.4f ", s}'; }
does_what_the_folder_says() {
  model bert "$kMasked"
  "$tessera" convert "$box/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  sed -i 's/BertForMaskedLM/BertModel/' "$box/hf/config.json"
  embeds cls.jsonl "$box/hf" "$box/lines.txt" --pooling cls --normalize
  expect "embeddings of length 1" test "$(lengths cls.jsonl)" = "1.0000 1.0000 1.0000 "
  embeds mean.jsonl "$box/hf" "$box/lines.txt" --normalize
  expect "another way of pooling" differs cls.jsonl mean.jsonl
  mkdir "$box/hf/1_Pooling"
  echo '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}' >"$box/hf/1_Pooling/config.json"
  echo '{"max_seq_length": 5}' >"$box/hf/sentence_bert_config.json"
  cat >"$box/hf/modules.json" <<EOT
[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
 {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
 {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
EOT
  embeds said.jsonl "$box/hf" "$box/lines.txt" --max-tokens 16
  expect "what the folder says" same cls.jsonl said.jsonl
  embeds mine.jsonl "$box/hf" "$box/lines.txt" --max-tokens 16 --pooling mean
  expect "what the command says in its place" same mean.jsonl mine.jsonl
  embeds cut.jsonl "$box/hf" "$box/lines.txt"
  expect "that a text is cut" says "1 texts lost their end" "$box/out"
  sed 's/^the second line$/the s/' "$box/lines.txt" >"$box/short.txt"
  embeds short.jsonl "$box/hf" "$box/short.txt"
  expect "the embedding of what is left" same cut.jsonl short.jsonl
  sed 's/^/to: /' "$box/lines.txt" >"$box/prompted.txt"
  embeds one.jsonl "$box/hf" "$box/lines.txt" --max-tokens 16 --prompt "to: "
  embeds two.jsonl "$box/hf" "$box/prompted.txt" --max-tokens 16
  expect "a prompt before each text" same one.jsonl two.jsonl
}
begins_training() {
  model bert "$kMasked"
  "$tessera" convert "$box/run" "$box/hf" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  sed -i 's/BertForMaskedLM/BertModel/' "$box/hf/config.json"
  printf '{"text": "aab", "label": "a"}\n{"text": "bba", "label": "b"}\n' >"$box/texts.jsonl"
  cat >"$box/classify.json" <<EOT
{
  "model": {"from": "$box/hf"}, "task": "classify", "data": {"train": "$box/texts.jsonl", "sequence_length": 8},
  "train_batch_size": 2, "trainer": {"max_steps": 1}, "run": {"threads_per_rank": 1, "dir": "$box/classifier"}
}
EOT
  timeout 60 "$tessera" train "$box/classify.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "that there was no head" says "model.from has a head for embedding" "$box/out"
  "$tessera" convert "$box/hf" "$box/again" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" convert "$box/again" "$box/bare" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "an architecture without a head" grep -q '"BertModel"' "$box/bare/config.json"
}
refuses_what_does_not_fit() {
  model bert "$kMasked"
  "$tessera" embed "$box/run" "$box/lines.txt" --pooling max >"$box/out" 2>&1 && echo "pooling by max was taken" && exit 1
  expect "the ways of pooling" says "mean" "$box/out"
  "$tessera" embed "$box/run" "$box/lines.txt" --batch-tokens 0 >"$box/out" 2>&1 && echo "empty batches were taken" && exit 1
  expect "the option" says "--batch-tokens 0" "$box/out"
  "$tessera" embed "$box/run" "$box/lines.jsonl" >"$box/out" 2>&1 && echo "a line without a text was taken" && exit 1
  expect "the line" says "lines.jsonl:1" "$box/out"
  printf '{"text": "a"}\n{"text": null}\n' >"$box/null.jsonl"
  "$tessera" embed "$box/run" "$box/null.jsonl" >"$box/out" 2>&1 && echo "null was taken for a text" && exit 1
  expect "what is there" says 'null.jsonl:2: "text" is null' "$box/out"
  "$tessera" generate "$box/run" -p a >"$box/out" 2>&1 && echo "an encoder made text" && exit 1
  return 0
}
names_the_line_without_a_text() {
  model llama '"pretrain"'
  printf 'first\n\nthird\n' >"$box/gap.txt"
  "$tessera" embed "$box/run" "$box/gap.txt" --out "$box/gap.npy" >"$box/out" 2>&1
  expect "exit code 3" test $? -eq 3
  expect "the line" says "gap.txt:2: the text has no tokens" "$box/out"
  expect "nothing is written" test ! -e "$box/gap.npy"
}
claim "an encoder's embeddings, as lines and as a matrix" writes_lines_and_matrices bert "$kMasked"
claim "a decoder's embeddings, as lines and as a matrix" writes_lines_and_matrices llama '"pretrain"'
claim "a folder of sentence-transformers says how texts are read and pooled" does_what_the_folder_says
claim "a classifier begins with a model without a head" begins_training
claim "what cannot be embedded is refused by name" refuses_what_does_not_fit
claim "a line without a text is named before the first embedding" names_the_line_without_a_text
claims_done
