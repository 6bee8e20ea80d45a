#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# An adapter is trained, resumed, read, merged and written for PEFT.   usage: adapter_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: adapter_test.sh PROGRAM}")
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

run() { # run WORDS...: the program, its output in $box/out
  timeout 120 "$tessera" "$@" >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
}
make_base() { # a small model that knows a little of the text
  (cd "$root" && run train examples/configs/tiny.json -n 1 --set "run.dir=$box/base-run" \
    --set trainer.max_steps=20 --set eval.every=0 --set run.threads_per_rank=1)
  run convert "$box/base-run" "$box/base"
}
train() { # train NAME RANKS WORDS...
  local name=$1 ranks=$2
  shift 2
  (cd "$root" && run train examples/finetune/lora.json -n "$ranks" --set "run.dir=$box/$name" --set "model.from=$box/base" \
    --set trainer.max_steps=8 --set eval.every=0 --set run.threads_per_rank=1 --set checkpoint.every=4 --set train_micro_batch_size_per_gpu=4 "$@")
}
weights_of() { # weights_of FOLDER: name and hash of every tensor, of a safetensors file
  python3 - "$1" <<'PY'
import glob, hashlib, json, struct, sys
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        print(name, header[name]["shape"], hashlib.sha256(data[8 + size + begin:8 + size + end]).hexdigest())
PY
}
trains_on_any_ranks() {
  make_base
  train one 1
  train two 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  train halves 2 --set trainer.max_steps=4
  train halves 1 --set trainer.max_steps=8
  expect "equal runs after a resume" "$tessera" compare "$box/halves" "$box/two"
}
keeps_the_adapter_alone() {
  run checkpoint list "$box/one" --json
  weights_of "$(ls -d "$box"/one/checkpoints/step-00000008)" >"$box/saved"
  expect "the adapter in the checkpoint" says "lora_A" "$box/saved"
  if grep -v lora_ "$box/saved" | grep -q .; then cat "$box/saved" && exit 1; fi
}
refuses_another_base() {
  (cd "$root" && run train examples/configs/tiny.json -n 1 --set "run.dir=$box/other-run" \
    --set trainer.max_steps=2 --set eval.every=0 --set trainer.seed=9 --set run.threads_per_rank=1)
  run convert "$box/other-run" "$box/other"
  local status=0
  (cd "$root" && timeout 120 "$tessera" train examples/finetune/lora.json --set "run.dir=$box/one" \
    --set "model.from=$box/other" --set trainer.max_steps=12 >"$box/out" 2>&1) || status=$?
  expect "exit 2" test "$status" = 2
  expect "the reason" says "the adapter was trained on the weights of" "$box/out"
}
merges_and_extracts() {
  run adapter merge "$box/one" "$box/merged"
  run adapter extract "$box/one" "$box/lora"
  expect "PEFT's keys" says '"peft_type": "LORA"' "$box/lora/adapter_config.json"
  run adapter list "$box/lora"
  expect "an adapted layer" says "transformer.h.0.attn.c_attn" "$box/out"
  run adapter merge "$box/lora" "$box/merged-again"
  weights_of "$box/merged" >"$box/a"
  weights_of "$box/merged-again" >"$box/b"
  expect "the same merged weights" cmp "$box/a" "$box/b"
  weights_of "$box/base" >"$box/c"
  if cmp -s "$box/a" "$box/c"; then echo "merging changed nothing" && exit 1; fi
  for model in one merged lora; do
    run generate "$box/$model" --prompt "The " --max-new-tokens 12 --temperature 0
    cp "$box/out" "$box/$model.text"
  done
  expect "the text of the merged model" cmp "$box/one.text" "$box/merged.text"
  expect "the text of the folder" cmp "$box/one.text" "$box/lora.text"
  run eval "$box/one" --json
  run train "$root/examples/finetune/lora.json" --dry-run --set "model.from=$box/base" --set "adapter.from=$box/lora" \
    --set "data.train=$root/examples/data/shakespeare.txt"
  train further 1 --set "adapter.from=$box/lora"
}
generates_with_several_in_one_base() {
  train second 1 --set trainer.seed=9 --set adapter.r=2 --set optimizer.params.lr=0.05
  local prompts='{"prompt": "The "}
{"prompt": "The ", "adapter": "second"}
{"prompt": "The ", "adapter": null}
{"prompt": "The ", "adapter": "lora"}
{"prompt": "A ", "adapter": "second"}'
  echo "$prompts" >"$box/prompts.jsonl"
  run generate "$box/base" --adapter "$box/lora" --adapter "second=$box/second" --prompts "$box/prompts.jsonl" \
    --out "$box/texts.jsonl" --max-new-tokens 12 --temperature 0
  local row=0 model prompt
  while read -r model prompt; do
    row=$((row + 1))
    run generate "$box/$model" --prompt "$prompt " --max-new-tokens 12 --temperature 0 --json
    expect "the tokens of $model alone" python3 - "$box/texts.jsonl" "$row" "$box/out" <<'PY'
import json, sys
line = open(sys.argv[1]).read().splitlines()[int(sys.argv[2]) - 1]
assert json.loads(line)["tokens"] == json.load(open(sys.argv[3]))["tokens"], line
PY
  done <<<"lora The
second The
base The
lora The
second A"
  run generate "$box/base" --adapter "second=$box/second" --prompt "A " --max-new-tokens 12 --temperature 0
  cp "$box/out" "$box/one.text"
  run generate "$box/second" --prompt "A " --max-new-tokens 12 --temperature 0
  expect "the text of one adapter" cmp "$box/one.text" "$box/out"
  echo '{"prompt": "The ", "adapter": "third"}' >"$box/prompts.jsonl"
  local status=0
  timeout 60 "$tessera" generate "$box/base" --adapter "$box/lora" --prompts "$box/prompts.jsonl" \
    --out "$box/none.jsonl" >"$box/out" 2>&1 || status=$?
  expect "an error" test "$status" != 0
  expect "the adapters that exist" says "the adapters are lora" "$box/out"
}
from_base_to_folder() {
  trains_on_any_ranks
  keeps_the_adapter_alone
  merges_and_extracts
  generates_with_several_in_one_base
  refuses_another_base
}
claim "an adapter trains on any ranks, resumes, merges, reads, is used with others, and refuses another base" from_base_to_folder
claims_done
