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
# The tag of each word, which is that of its first token.
tags() {
  local i
  for ((i = 0; i < 64; ++i)); do
    printf '{"tokens": ["%s", "%s", "xy"], "tags": ["%s", "low", "%s"]}\n' "$(printf 'A%.0s' $(seq $((1 + i % 3))))" \
      "$(printf 'b%.0s' $(seq $((1 + i % 4))))" "$( ((i % 2)) && echo high || echo low)" "$( ((i % 3)) && echo end || echo low)"
  done >"$box/data.jsonl"
  export_of bert '"tag"'
  "$tessera" predict "$box/run" "$box/data.jsonl" --out "$box/said.jsonl" --quiet || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import json, sys
import torch, transformers
box = sys.argv[1]
model, loading = transformers.AutoModelForTokenClassification.from_pretrained(f"{box}/folder", output_loading_info=True)
assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{box}/folder")
model.eval()
seen = set()
for record, said in zip(map(json.loads, open(f"{box}/data.jsonl")), map(json.loads, open(f"{box}/said.jsonl")), strict=True):
    ids, first = [], []
    for i, word in enumerate(record["tokens"]):
        first.append(len(ids))
        ids += tokenizer(word if i == 0 else " " + word, add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    theirs = [model.config.id2label[logits[at].argmax().item()] for at in first]
    assert theirs == said["tags"], (record, theirs, said)
    seen.update(theirs)
assert len(seen) > 1, seen
PYTHON
}
# The answers that both write, greedily.
answers() {
  local i
  for ((i = 0; i < 64; ++i)); do
    if ((i % 2)); then echo "{\"source\": \"$(printf 'b%.0s' $(seq $((2 + i % 5))))\", \"target\": \"many b\"}"; else
      echo "{\"source\": \"$(printf 'a%.0s' $(seq $((2 + i % 5))))\", \"target\": \"a wins\"}"; fi
  done >"$box/data.jsonl"
  export_of "$1" '"seq2seq"'
  "$tessera" generate "$box/run" --prompt aab --temperature 0 --max-new-tokens 12 --quiet >"$box/ours" || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import sys
import transformers
box = sys.argv[1]
model, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(f"{box}/folder", output_loading_info=True)
assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
model.eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{box}/folder")
inputs = tokenizer("aab", return_tensors="pt")
if inputs.input_ids[0, -1] != model.config.eos_token_id:
    import torch
    inputs = {"input_ids": torch.cat([inputs.input_ids, torch.tensor([[model.config.eos_token_id]])], 1)}
out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
theirs, ours = tokenizer.decode(out[0], skip_special_tokens=True).strip(), open(f"{box}/ours").read().strip()
print(repr(theirs), repr(ours))
assert theirs == ours and len(ours) > 0
PYTHON
}
# The classes of images of one size, which need no resizing: the two programs differ in how they resize.
images() {
  "$python" - "$box/set" <<'PYTHON' || exit 1
import pathlib, struct, sys, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
for i in range(24):
    left = i % 2 == 0
    rows = b"".join(b"\0" + bytes((180 if (x < 4) == left else 40) + (i * 7 + x * 3 + y * 5 + c) % 50 for x in range(8) for c in range(3)) for y in range(8))
    folder = pathlib.Path(sys.argv[1]) / ("left" if left else "right")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
                                      + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PYTHON
  cat >"$box/run.json" <<EOF
{
  "model": {"family": "vit", "num_layers": 2, "hidden_size": 32, "num_heads": 4, "image_size": 8, "patch_size": 4},
  "task": "image_classify", "data": {"train": "$box/set"}, "train_batch_size": 12, "optimizer": {"params": {"lr": 1e-3}},
  "trainer": {"max_steps": 6}, "run": {"dir": "$box/run", "threads_per_rank": 1}
}
EOF
  timeout 120 "$tessera" train "$box/run.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" convert "$box/run" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" predict "$box/run" "$box/set" --out "$box/said.jsonl" --quiet || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import json, pathlib, struct, sys, zlib
import torch, transformers
box = sys.argv[1]
model, loading = transformers.AutoModelForImageClassification.from_pretrained(f"{box}/folder", output_loading_info=True)
assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
model.eval()
files = [path for name in ("left", "right") for path in sorted(pathlib.Path(f"{box}/set/{name}").iterdir())]
worst = 0
for path, said in zip(files, map(json.loads, open(f"{box}/said.jsonl")), strict=True):
    data = path.read_bytes()
    size = struct.unpack(">I", data[33:37])[0]
    rows = zlib.decompress(data[41:41 + size])
    pixels = torch.tensor([[list(rows[y * 25 + 1 + x * 3:y * 25 + 4 + x * 3]) for x in range(8)] for y in range(8)]).permute(2, 0, 1)
    with torch.no_grad():
        theirs = torch.softmax(model(pixel_values=(pixels / 127.5 - 1).unsqueeze(0)).logits[0], 0)
    for i, p in enumerate(theirs.tolist()):
        worst = max(worst, abs(p - said["scores"][model.config.id2label[i]]))
print("worst", worst)
assert worst < 1e-4
PYTHON
}
# PEFT loads an adapter that was trained here, and what both think of texts.
adapter() {
  "$python" -c 'import peft' 2>/dev/null || { echo "without peft" && return 0; }
  labelled 0
  export_of "$1" '"pretrain"'
  mv "$box/folder" "$box/base"
  rm -rf "$box/run"
  cat >"$box/tuned.json" <<EOF
{
  "model": {"from": "$box/base"}, "adapter": {"type": "$2", "r": 4, "alpha": 8, "rank_pattern": {"v_proj": 2}},
  "data": {"train": "$box/data.jsonl", "sequence_length": 16},
  "train_batch_size": 16, "optimizer": {"params": {"lr": 2e-2}}, "trainer": {"max_steps": 10},
  "run": {"dir": "$box/run", "threads_per_rank": 1}
}
EOF
  timeout 120 "$tessera" train "$box/tuned.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" adapter extract "$box/run" "$box/peft" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  printf 'aabbcc\nabcdefg\n' >"$box/lines"
  "$tessera" score "$box/run" "$box/lines" --quiet >"$box/scores" || exit 1
  "$python" - "$box" <<'PYTHON' || exit 1
import json, sys
import torch, transformers, peft
box = sys.argv[1]
base = transformers.AutoModelForCausalLM.from_pretrained(f"{box}/base")
tokenizer = transformers.AutoTokenizer.from_pretrained(f"{box}/base")
def losses(model):
    model.eval()
    for line in open(f"{box}/lines"):
        ids = tokenizer(line.rstrip(), return_tensors="pt").input_ids
        with torch.no_grad():
            yield model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
plain = list(losses(base))
model = peft.PeftModel.from_pretrained(base, f"{box}/peft")
for before, after, score in zip(plain, losses(model), map(json.loads, open(f"{box}/scores"))):
    print(before, after, score)
    assert abs(after + score["log_probability"]) < 1e-3
    assert abs(after - before) > 1e-2, "the adapter has learned nothing"
PYTHON
}
claim "the labels of an encoder" labels bert
claim "the labels of a decoder" labels llama
claim "several labels of a text" several_labels
claim "numbers" numbers
claim "the text of gpt2" text gpt2
claim "the text of llama" text llama
claim "the tags of words" tags
claim "the answers of t5" answers t5
claim "the classes of images" images
claim "LoRA of a llama, with PEFT" adapter llama lora
claim "DoRA of gpt2, with PEFT" adapter gpt2 dora
claims_done
