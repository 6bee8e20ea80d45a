#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 600
# The example of reinforcement learning: its evaluations and exports; the same bits on any ranks and after a kill; its ledger is
# replayed; three steps run from one file. rl_learning_test.sh shows that it learns.   usage: rl_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: rl_test.sh PROGRAM}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

digits() {
  [[ -e $box/digits.jsonl ]] || "$repository/examples/rlhf/make_digits.py" 512 >"$box/digits.jsonl"
}
train() { # train NAME RANKS KEY=VALUE...
  local name=$1 ranks=$2
  shift 2
  timeout 200 "$tessera" train "$repository/examples/rlhf/grpo.json" -n "$ranks" --set "run.dir=$box/$name" \
    --set "data.train=$box/digits.jsonl" --set run.threads_per_rank=1 "$@" >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
}
refuses() { # refuses WORDS COMMAND...
  local words=$1
  shift
  if "$@" >"$box/out" 2>&1; then echo "accepted: $*" && exit 1; fi
  expect "a refusal that says $words" says "$words" "$box/out"
}
evaluated() {
  digits
  head -40 "$box/digits.jsonl" >"$box/held_out.jsonl"
  train whole 1 --set "data.validation=$box/held_out.jsonl" --set trainer.max_steps=40 --set eval.every=10 --set eval.best=reward \
    --set checkpoint.best=true
  expect "four rewards of held-out prompts, and the checkpoint of the largest one" python3 - "$box/whole" <<'PY'
import json, sys
run = sys.argv[1]
told = {line["step"]: line["eval_terms"]["reward"] for line in map(json.loads, open(run + "/metrics.jsonl")) if "eval_terms" in line}
assert list(told) == [10, 20, 30, 40] and all(0 <= one <= 1 for one in told.values()), told
best = open(run + "/checkpoints/best").read().strip()
assert best == f"step-{max(told, key=told.get):08d}", (best, told)
PY
  "$tessera" data "$repository/examples/rlhf/grpo.json" --set "data.train=$box/digits.jsonl" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" generate "$box/whole" --prompt "7=" --max-new-tokens 1 --temperature 0 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  "$tessera" convert "$box/whole" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "a folder of a model that continues text" says "ForCausalLM" "$box/folder/config.json"
}
killed() {
  digits
  local short=(--set trainer.max_steps=16 --set checkpoint.every=3)
  train one 1 "${short[@]}"
  train two 2 "${short[@]}"
  expect "equal runs on one rank and on two" "$tessera" compare "$box/one" "$box/two"
  expect "equal ledgers" cmp "$box/one/rollouts.jsonl" "$box/two/rollouts.jsonl"
  # begin LINES: trains in the background as $job, until the ledger has so many lines, which are some of a rollout.
  begin() {
    "$tessera" train "$repository/examples/rlhf/grpo.json" -n 2 --set "run.dir=$box/torn" "${short[@]}" \
      --set "data.train=$box/digits.jsonl" --set run.threads_per_rank=1 >"$box/out" 2>"$box/err" &
    job=$!
    until [[ $(wc -l <"$box/torn/rollouts.jsonl" 2>/dev/null || echo 0) -ge $1 ]]; do sleep 0.01; done
  }
  local job code
  begin 1100
  kill -KILL "$(pgrep -P "$job" | tail -1)"
  wait "$job"
  code=$?
  expect "the exit code of a lost rank, not $code" test "$code" = 6
  expect "the name of the rank" says "rank 1 was lost: signal 9 (SIGKILL)" "$box/err"
  begin 2200
  pkill -KILL -P "$job" || true
  kill -KILL "$job" || true
  wait "$job" 2>/dev/null || true
  train torn 1 "${short[@]}"
  expect "equal runs after a kill" "$tessera" compare "$box/one" "$box/torn"
  expect "equal ledgers after a kill" cmp "$box/one/rollouts.jsonl" "$box/torn/rollouts.jsonl"
  "$tessera" rl replay "$box/torn" 14 >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "an update that was made again" says "step 14: equal" "$box/out"
  "$tessera" rl why "$box/torn" 5 --json --top 0 >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "shares of all completions" python3 -c "
import json
told = json.load(open('$box/out'))
shares = [one['share'] for one in told['completions']]
assert told['step'] == 5 and abs(sum(shares) - 1) < 1e-3, told
assert [abs(one) for one in shares] == sorted((abs(one) for one in shares), reverse=True)"
  "$tessera" rl why "$box/torn" --top 2 >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "the last step" says "step 16 learned from" "$box/out"
  refuses "STEP is 17" "$tessera" rl why "$box/torn" 17
  python3 - "$box/torn/rollouts.jsonl" <<'PY'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
next(line for line in lines if line["kind"] == "worth")["advantages"][0] = 3.5
with open(sys.argv[1], "w") as out:
    out.writelines(json.dumps(line) + "\n" for line in lines)
PY
  refuses "step 1: loss" "$tessera" rl replay "$box/torn" 1
  "$tessera" verify rl "$repository/examples/rlhf/grpo.json" --set "data.train=$box/digits.jsonl" --json >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
  expect "a small difference" python3 -c "
import json
told = json.load(open('$box/out'))
assert told['tokens'] == 256 and told['largest'] < 1e-4 and told['clip_share'] == 0, told"
  "$tessera" verify rl "$repository/examples/rlhf/grpo.json" --set "data.train=$box/digits.jsonl" --set rl.parity=exact --set bf16.enabled=true \
    --json >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "no difference" python3 -c "
import json
told = json.load(open('$box/out'))
assert told['tokens'] == 256 and told['largest'] == 0 and told['mean'] == 0, told"
}
chat() {
  local code
  digits
  "$repository/examples/rlhf/make_pairs.py" "$repository/examples/data/shakespeare.txt" 40 >"$box/pairs.jsonl"
  python3 - "$box/digits.jsonl" "$box/answers.jsonl" <<'PY'
import json, sys
with open(sys.argv[2], "w") as out:
    for line in map(json.loads, open(sys.argv[1])):
        out.write(json.dumps({"prompt": line["prompt"], "completion": line["answer"]}) + "\n")
PY
  cat >"$box/chat.json" <<JSON
{
  "dir": "$box/chat",
  "common": {"data": {"sequence_length": 160}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "trainer": {"max_steps": 3},
             "run": {"threads_per_rank": 1}},
  "sft": {"model": {"family": "llama", "num_layers": 2, "hidden_size": 32, "num_heads": 2}, "data": {"train": "$box/answers.jsonl"}},
  "reward": {"data": {"train": "$box/pairs.jsonl"}},
  "rl": {"rl": {"max_new_tokens": 4}, "data": {"train": "$box/digits.jsonl"}}
}
JSON
  timeout 200 "$tessera" rlhf "$box/chat.json" --set rl.trainer.max_steps=2 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "three steps" says "step 3 of 3: rl" "$box/out"
  timeout 200 "$tessera" rlhf "$box/chat.json" -n 2 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "what is finished" says "1-sft is finished" "$box/out"
  timeout 200 "$tessera" rlhf "$box/chat.json" --step 2 3 >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "no first step" python3 -c "assert 'step 1 of 3' not in open('$box/out').read()"
  refuses "nothing is downloaded" "$tessera" rlhf "$box/chat.json" --actor-model 1.3b
  refuses "nothing is downloaded" "$tessera" rlhf "$box/chat.json" --unsupervised_dataset_name wikitext
  refuses "nothing is downloaded" "$tessera" rlhf "$box/chat.json" --unsupervised_dataset_config_name wikitext-2-raw-v1
  refuses "no pretraining texts" "$tessera" rlhf "$box/chat.json" --step 3 --unsup_coef 2
  expect "the critic and the scores of the reward model" python3 -c "
import json
lines = [json.loads(line) for line in open('$box/chat/3-rl/metrics.jsonl')]
assert [line['step'] for line in lines] == [1, 2, 3], lines
assert all('critic_loss' in line['terms'] and 'kl_reference' in line['terms'] for line in lines), lines"
  head -3 "$box/digits.jsonl" >"$box/few.jsonl"
  "$tessera" prompt-eval "$box/chat/1-sft" "$box/chat/3-rl" --prompts "$box/few.jsonl" --reward "$box/chat/2-reward" \
    --max-new-tokens 4 --html "$box/page.html" --json >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "both answers with their scores" python3 -c "
import json
lines = [json.loads(line) for line in open('$box/out')]
assert len(lines) == 3 and all({'prompt', 'a', 'b', 'score_a', 'score_b'} == set(line) for line in lines), lines"
  expect "a page" says "<th>$box/chat/3-rl</th>" "$box/page.html"
  "$tessera" eval "$box/chat/2-reward" --data "$box/pairs.jsonl" --json >"$box/its" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the reward model's accuracy on pairs" python3 -c "
import json
terms = json.load(open('$box/its'))['terms']
assert 0 <= terms['accuracy'] <= 1 and abs(terms['margin'] - (terms['rewards/chosen'] - terms['rewards/rejected'])) < 1e-9, terms"
  # The same policy and reward model, which is tested on pairs first.
  cat >"$box/tested.json" <<JSON
{
  "model": {"from": "$box/chat/1-sft"}, "task": "rl", "run": {"dir": "$box/tested", "threads_per_rank": 1},
  "rl": {"samples": 2, "max_new_tokens": 4, "rewards": [{"type": "model", "from": "$box/chat/2-reward", "pairs": "$box/pairs.jsonl"}]},
  "data": {"train": "$box/digits.jsonl", "sequence_length": 160}, "train_batch_size": 8, "trainer": {"max_steps": 1}
}
JSON
  timeout 200 "$tessera" train "$box/tested.json" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "a test of the reward model" python3 -c "
import json
told = json.load(open('$box/tested/reward_models.json'))['model']
assert told['pairs'] > 10 and 0 <= told['accuracy'] <= 1, told"
  "$tessera" convert "$box/chat/2-reward" "$box/folder" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  timeout 200 "$tessera" train "$box/tested.json" --set "run.dir=$box/by_folder" \
    --set "rl.rewards=[{\"type\": \"model\", \"from\": \"$box/folder\"}]" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the same scores by the reward model's Hugging Face folder" cmp "$box/tested/rollouts.jsonl" "$box/by_folder/rollouts.jsonl"
  timeout 200 "$tessera" train "$box/tested.json" --set "run.dir=$box/dropped" --set rl.max_new_tokens=1 --set rl.truncated=mask \
    >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "that all completions were dropped" says "are left out of the loss, so that the update learns nothing" "$box/out"
  timeout 200 "$tessera" train "$box/tested.json" --set "run.dir=$box/diverged" --set optimizer.lr=1e30 --set trainer.max_steps=3 \
    >"$box/out" 2>&1
  code=$?
  expect "the exit code of a training that diverged, not $code" test "$code" = 7
  expect "the step that diverged" says "diverged at step 2" "$box/out"
  refuses "\"rl\" is " "$tessera" rlhf "$box/chat.json" --set rl=null
}
claim "held-out prompts are rewarded, the best checkpoint is kept, and the policy is exported" evaluated
claim "rollouts are the same on any ranks, after a kill, and when they are replayed" killed
claim "fine-tuning, a reward model and reinforcement run from one file" chat
claims_done
