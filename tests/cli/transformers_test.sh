#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# transformers loads the models that are exported, and computes what tessera does. Without transformers and torch it is skipped.
# usage: transformers_test.sh PROGRAM   (PYTHON: an interpreter that has both; default python3)
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: transformers_test.sh PROGRAM}")
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers' 2>/dev/null || exit 77
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# export_of FAMILY TASK: trains on $box/data.jsonl, and writes the Hugging Face folder $box/folder.
export_of() {
  cat >"$box/run.json" <<EOF
{
  "model": {"family": "$1", "num_layers": 2, "hidden_size": 32, "num_heads": 2}, "task": $2,
  "data": {"train": "$box/data.jsonl", "sequence_length": 16},
  "train_batch_size": 16, "optimizer": {"params": {"lr": 5e-3}}, "trainer": {"max_steps": 10},
  "run": {"dir": "$box/run", "threads_per_rank": 1}
}
EOF
  timeout 120 "$tessera" train "$box/run.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" convert "$box/run" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
}
# labelled LABEL...: 64 texts, with these labels in turn.
labelled() {
  local i
  for ((i = 0; i < 64; ++i)); do
    printf '{"text": "%s", "label": %s}\n' "$(printf "$(printf "\\$(printf %o $((97 + i % 7)))")%.0s" $(seq $((2 + i % 9))))" "${@:1 + i % $#:1}"
  done >"$box/data.jsonl"
}
# agrees: the predictions of both for each text of $box/data.jsonl.
agrees() {
  "$tessera" predict "$box/run" "$box/data.jsonl" --out "$box/said.jsonl" --quiet || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import json, sys
import torch, transformers
box = sys.argv[1]
model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(f"{box}/folder", output_loading_info=True)
assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{box}/folder")
model.eval()
worst = 0
for record, said in zip(map(json.loads, open(f"{box}/data.jsonl")), map(json.loads, open(f"{box}/said.jsonl")), strict=True):
    with torch.no_grad():
        logits = model(**tokenizer(record["text"], return_tensors="pt")).logits[0]
    if "value" in said:
        worst = max(worst, abs(logits[0].item() - said["value"]))
        continue
    many = model.config.problem_type == "multi_label_classification"
    theirs = torch.sigmoid(logits) if many else torch.softmax(logits, 0)
    for i, p in enumerate(theirs.tolist()):
        worst = max(worst, abs(p - said["scores"][model.config.id2label[i]]))
print("worst", worst)
assert worst < 1e-4
PYTHON
}
labels() {
  labelled '"good"' '"bad"' '"odd"'
  export_of "$1" '"classify"'
  agrees
}
several_labels() {
  labelled '["x"]' '["x", "y"]' '["y"]'
  export_of bert '{"type": "classify", "params": {"multi_label": true}}'
  agrees
}
numbers() {
  labelled 0.5 1.25 3
  export_of bert '"regression"'
  agrees
}
# The text that both write, greedily, and what both think of other texts.
text() {
  labelled 0
  export_of "$1" '"pretrain"'
  "$tessera" generate "$box/run" --prompt aab --temperature 0 --max-new-tokens 12 --quiet >"$box/ours" || exit 1
  printf 'aabbcc\nabcdefg\n' >"$box/lines"
  "$tessera" score "$box/run" "$box/lines" --quiet >"$box/scores" || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import json, sys
import torch, transformers
box = sys.argv[1]
model, loading = transformers.AutoModelForCausalLM.from_pretrained(f"{box}/folder", output_loading_info=True)
assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
model.eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{box}/folder")
out = model.generate(**tokenizer("aab", return_tensors="pt"), max_new_tokens=12, do_sample=False)
theirs, ours = tokenizer.decode(out[0][3:], skip_special_tokens=True).strip(), open(f"{box}/ours").read().strip()
print(repr(theirs), repr(ours))
assert theirs == ours
for line, score in zip(open(f"{box}/lines"), map(json.loads, open(f"{box}/scores"))):
    ids = tokenizer(line.rstrip(), return_tensors="pt").input_ids
    with torch.no_grad():
        loss = model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    print(loss, score)
    assert abs(loss + score["log_probability"]) < 1e-3
PYTHON
}
claim "the labels of an encoder" labels bert
claim "the labels of a decoder" labels llama
claim "several labels of a text" several_labels
claim "numbers" numbers
claim "the text of gpt2" text gpt2
claim "the text of llama" text llama
claims_done
