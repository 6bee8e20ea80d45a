#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 600
# The examples of preferences learn; the same bits on any ranks and after a resume, whose reference is the one that the run began
# with; what was trained generates and is exported.   usage: preferences_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: preferences_test.sh PROGRAM}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

train() { # train NAME EXAMPLE RANKS KEY=VALUE...
  local name=$1 example=$2 ranks=$3
  shift 3
  timeout 120 "$tessera" train "$repository/examples/rlhf/$example.json" -n "$ranks" --set "run.dir=$box/$name" \
    --set "data.train=$box/pairs.jsonl" --set run.threads_per_rank=1 "$@" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
learned() { # learned NAME: the last evaluation
  python3 - "$box/$1/metrics.jsonl" <<'PY'
import json, sys
last = [line for line in map(json.loads, open(sys.argv[1])) if "eval_loss" in line][-1]
print(last)
assert last["eval_loss"] < 0.6, last
assert last["eval_terms"]["accuracy"] > 0.8, last
PY
}
evaluates() { # evaluates NAME [COUNTED]: eval tells what the last evaluation of the training told
  "$tessera" eval "$box/$1" --threads 1 --json >"$box/eval" || return 1
  "$tessera" eval "$box/$1" --threads 1 >"$box/told" || return 1
  python3 - "$box/$1/metrics.jsonl" "$box/eval" "$box/told" "${2:-pairs}" <<'PY'
import json, math, sys
counted = sys.argv[4]
last = [line for line in map(json.loads, open(sys.argv[1])) if "eval_loss" in line][-1]
told, text = json.load(open(sys.argv[2])), open(sys.argv[3]).read()
print(last, told, text)
assert told[counted] == last["eval_tokens"] > 5 and "perplexity" not in told and "bits_per_byte" not in told and "tokens" not in told
assert f' | {told[counted]} {counted} | ' in text and "perplexity" not in text
assert all(word in text for word in (["accuracy", "margin"] if counted == "pairs" else ["rewards/chosen", "rewards/rejected", "kl"]))
assert math.isclose(told["loss"], last["eval_loss"], rel_tol=1e-5)
for name, value in last["eval_terms"].items():
    assert math.isclose(told["terms"][name], value, rel_tol=1e-4, abs_tol=1e-5), name
PY
}
pairs() {
  [[ -e $box/pairs.jsonl ]] || "$repository/examples/rlhf/make_pairs.py" "$repository/examples/data/shakespeare.txt" 200 >"$box/pairs.jsonl"
}
prefers() {
  pairs
  train one dpo 1
  train two dpo 2
  expect "equal runs" "$tessera" compare "$box/one" "$box/two"
  expect "a preference that was learned" learned one
  train halves dpo 2 --set trainer.max_steps=15 --set eval.every=15
  cp "$box/halves/reference.bin" "$box/kept"
  train halves dpo 1 --set trainer.max_steps=30
  expect "equal runs after a resume" "$tessera" compare "$box/halves" "$box/two"
  expect "the reference is kept" cmp "$box/kept" "$box/halves/reference.bin"
  # A damaged one is computed again.
  train damaged dpo 1 --set trainer.max_steps=15 --set eval.every=15
  printf 'x' | dd of="$box/damaged/reference.bin" bs=1 seek=60 conv=notrunc 2>/dev/null
  train damaged dpo 1 --set trainer.max_steps=30
  expect "equal runs after a damage" "$tessera" compare "$box/damaged" "$box/two"
  expect "the evaluation of the training" evaluates one
  "$tessera" eval "$box/one" --threads 1 --json -n 2 >"$box/two_ranks"
  expect "the same on two ranks" cmp "$box/eval" "$box/two_ranks"
  "$tessera" generate "$box/one" --prompt "First" --max-new-tokens 8 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" convert "$box/one" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "a folder of a model that continues text" says "ForCausalLM" "$box/folder/config.json"
}
labels() {
  pairs
  python3 - "$box/pairs.jsonl" >"$box/labelled.jsonl" <<'PY'
import json, sys
for one in map(json.loads, open(sys.argv[1])):
    for key in "chosen", "rejected":
        print(json.dumps({"prompt": one["prompt"], "completion": one[key], "label": key == "chosen"}))
PY
  train labelled dpo 1 --set prefer.method=kto --set prefer.loss.type=kto --set "data.train=$box/labelled.jsonl" \
    --set trainer.max_steps=6 --set eval.every=6
  expect "the evaluation of the training" evaluates labelled completions
  "$tessera" eval "$box/labelled" --threads 1 --json -n 2 >"$box/two_ranks"
  expect "the same on two ranks" cmp "$box/eval" "$box/two_ranks"
  head -5 "$box/labelled.jsonl" >"$box/five.jsonl"
  "$tessera" eval "$box/labelled" --threads 1 --json --data "$box/five.jsonl" >"$box/eval"
  expect "a batch that is not full" says '"completions":5' "$box/eval"
  ! "$tessera" eval "$box/labelled" --data "$box/pairs.jsonl" >"$box/out" 2>&1
  expect "a refusal of pairs, which names the key" says 'the record has no "label"' "$box/out"
}
scores() {
  pairs
  train scores reward 1
  train shared reward 2 --set zero_optimization.stage=3
  expect "equal runs" "$tessera" compare "$box/scores" "$box/shared"
  expect "scores that were learned" learned scores
  expect "the evaluation of the training" evaluates scores
  "$tessera" convert "$box/scores" "$box/judge" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "a folder of a classifier" says "ForSequenceClassification" "$box/judge/config.json"
  expect "with one label" python3 -c "import json; assert len(json.load(open('$box/judge/config.json'))['id2label']) == 1"
}
claim "a model learns preferences, with the same bits on two ranks and after a resume" prefers
claim "completions that are labelled are learned, and evaluated against the reference" labels
claim "a reward model learns to score, and is exported" scores
claims_done
