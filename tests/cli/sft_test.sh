#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# A decoder learns to answer: the same bits on any number of ranks and after a resume; packed texts give the loss of padded ones.   usage: sft_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: sft_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# Conversations in which every answer is the same.
conversations() {
  local i letter
  for ((i = 0; i < 96; ++i)); do
    letter=$(printf "\\$(printf %o $((97 + i % 8)))")
    printf '{"messages": [{"role": "user", "content": "say %s"}, {"role": "assistant", "content": "ok."}]}\n' "$letter"
  done
}
configuration() { # configuration PACK > FILE
  cat <<EOF
{
  "model": {"family": "llama", "num_layers": 1, "hidden_size": 32, "num_heads": 2, "max_positions": 160},
  "task": "sft", "sft": {"chat_template": "chatml"},
  "data": {"train": "$box/chat.jsonl", "sequence_length": 160, "validation_fraction": 0.25, "pack": $1},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "optimizer": {"params": {"lr": 1e-2}},
  "trainer": {"max_steps": 60}, "eval": {"every": 60}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 30}
}
EOF
}
train() { # train NAME RANKS KEY=VALUE...
  local name=$1 ranks=$2
  shift 2
  timeout 120 "$tessera" train "$box/packed.json" -n "$ranks" --set "run.dir=$box/$name" "$@" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
packed_costs_what_padded_does() {
  "$tessera" eval "$box/one" --threads 1 --json >"$box/packed.eval" 2>"$box/err" || { cat "$box/err" && exit 1; }
  sed 's/"pack": true/"pack": false/' "$box/one/config.json" >"$box/padded.json"
  mkdir "$box/padded" && cp -r "$box/one/checkpoints" "$box/padded/" && cp "$box/padded.json" "$box/padded/config.json"
  "$tessera" eval "$box/padded" --threads 1 --json >"$box/padded.eval" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the same loss of the same tokens" python3 - "$box/packed.eval" "$box/padded.eval" <<'PY'
import json, sys
a, b = (json.load(open(name)) for name in sys.argv[1:])
print(a, b)
assert a["tokens"] == b["tokens"] > 0
assert abs(a["loss"] - b["loss"]) <= 2e-6 * max(1.0, a["loss"])
PY
}
learns_on_any_ranks() {
  conversations >"$box/chat.jsonl"
  configuration true >"$box/packed.json"
  train one 1
  train two 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  train halves 2 --set trainer.max_steps=30 --set eval.every=0
  train halves 1 --set trainer.max_steps=60 --set eval.every=60
  expect "equal runs after a resume" "$tessera" compare "$box/halves" "$box/two"
  echo "say x" | "$tessera" chat "$box/two" --temperature 0 --max-new-tokens 16 >"$box/chat" 2>"$box/err" ||
    { cat "$box/chat" "$box/err" && exit 1; }
  expect "the answer that was learned" says "ok." "$box/chat"
  "$tessera" convert "$box/two" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the template in the written folder" says "generation" "$box/folder/chat_template.jinja"
  packed_costs_what_padded_does
}
claim "a decoder learns to answer, with the same bits on two ranks and after a resume" learns_on_any_ranks
claims_done
