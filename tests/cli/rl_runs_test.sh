#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# An alarm sends a run back, the doctor explains a run, held-out prompts are evaluated, and a run branches off another.
# usage: rl_runs_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/forced_alarm.sh"
tessera=$(realpath "${1:?usage: rl_runs_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# policy STEPS RL: a configuration in $box/policy.json of a tiny policy that soon writes letters alone.
policy() {
  printf '{"prompt": "%s", "answer": "x"}\n' a bb cc d eee f gg h >"$box/prompts.jsonl"
  cat >"$box/policy.json" <<JSON
{
  "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "dropout": 0}, "task": "rl",
  "rl": {"samples": 4, "max_new_tokens": 80, "rewards": [{"type": "regex", "pattern": "^[@-~]"}], $2},
  "data": {"train": "$box/prompts.jsonl", "sequence_length": 96},
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "optimizer": {"params": {"lr": 0.02}},
  "trainer": {"max_steps": $1}, "checkpoint": {"every": 2, "keep": 40}, "run": {"threads_per_rank": 1}
}
JSON
}
train() { # train NAME RANKS ARGUMENTS...: the exit code is in $code
  timeout 100 "$tessera" train "$box/policy.json" -n "$2" --set "run.dir=$box/$1" "${@:3}" >"$box/out" 2>"$box/err"
  code=$?
}
trained() { # trained ARGUMENTS OF train...
  train "$@"
  [[ $code == 0 ]] || { cat "$box/out" "$box/err" && exit 1; }
}
refuses() { # refuses WORDS COMMAND...
  local words=$1
  shift
  if "$@" >"$box/out" 2>&1; then echo "accepted: $*" && exit 1; fi
  expect "a refusal that says $words" says "$words" "$box/out"
}

goes_back() {
  policy_with_an_alarm '"on_alarm": "roll_back", "roll_back": {"rollouts": 1, "most": 2}'
  train one 1
  expect "the error of the alarm, exit code 7, not $code" test "$code" = 7
  expect "which says why" says "(alarm " "$box/err"
  expect "and how often the run went back" says "has gone back 2 times" "$box/err"
  expect "two returns" test "$(wc -l <"$box/one/roll_backs.jsonl")" = 2
  expect "each to a checkpoint before its alarm, with other numbers" python3 - "$box/one" <<'PY'
import json, sys
run = sys.argv[1]
# The alarm has held for ten rollouts after 21 updates; the newest checkpoint a rollout before its first one has 10 updates.
for line in map(json.loads, open(run + "/roll_backs.jsonl")):
    assert (line["alarm"], line["after"], line["to"]) == ("equal_groups", 21, 10) and line["what"], line
    to = line["to"]
seeds = lambda path: {(line["version"], line["number"]): line["seed"] for line in map(json.loads, open(path)) if line["kind"] == "completion"}
now, before = seeds(run + "/rollouts.jsonl"), seeds(line["aside"] + "/rollouts.jsonl")
for key, seed in now.items():
    if key in before: assert (seed == before[key]) == (key[0] < to), key
steps = [line for line in map(json.loads, open(run + "/metrics.jsonl")) if "terms" in line]
assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
assert steps[-1]["terms"]["roll_backs"] == 2, steps[-1]
PY
  train two 2
  expect "the same on two ranks" cmp "$box/one/rollouts.jsonl" "$box/two/rollouts.jsonl"
  # This run is killed soon after it went back the first time.
  timeout -s KILL 100 "$tessera" train "$box/policy.json" -n 1 --set "run.dir=$box/torn" >/dev/null 2>&1 &
  local job=$!
  until_true test -e "$box/torn/roll_backs.jsonl"
  pkill -KILL -P "$job" || true
  wait "$job" 2>/dev/null || true
  train torn 1
  expect "the same end after a kill" test "$code" = 7
  expect "the same rollouts after a kill" cmp "$box/one/rollouts.jsonl" "$box/torn/rollouts.jsonl"

  "$tessera" doctor "$box/one" >"$box/out" || { cat "$box/out" && exit 1; }
  expect "the doctor says the alarm in words" says "(alarm " "$box/out"
  expect "and that the run went back" says "sent the run back to the checkpoint of" "$box/out"
  expect "and that ends were not trained" says "untrained_end" "$box/out"
}

evaluates() {
  policy 12 '"validation": {"samples": 2, "temperature": 1}'
  printf '{"prompt": "%s"}\n' x yy z xx >"$box/held_out.jsonl"
  trained run 1 --set "data.validation=$box/held_out.jsonl" --set eval.every=12
  expect "a plot of the rewards, also of held-out prompts" says ">held out " "$box/run/rollouts.svg"
  "$tessera" eval "$box/run" --json >"$box/its" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "what the training measured" python3 - "$box/run/metrics.jsonl" "$box/its" <<'PY'
import json, sys
trained = [line for line in map(json.loads, open(sys.argv[1])) if "eval_terms" in line][-1]["eval_terms"]
now = json.load(open(sys.argv[2]))
assert now["reward"] == trained["reward"] and now["length"] == trained["length"] and now["entropy"] == trained["entropy"], (trained, now)
PY
  "$tessera" eval "$box/run" --data "$box/held_out.jsonl" -n 2 --json >"$box/named" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the same of a named file on two ranks" cmp "$box/its" "$box/named"
  "$tessera" eval "$box/run" >"$box/out" 2>"$box/err" || { cat "$box/err" && exit 1; }
  expect "the reward for people" says "reward" "$box/out"
  refuses "--generate" "$tessera" eval "$box/run" --generate 2
}

branches() {
  policy 8 '"kl": {"coefficient": 0.01}'
  trained run 1
  "$tessera" rl branch "$box/run" 5 --out "$box/same" >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "a branch without changes is the run" "$tessera" compare "$box/run" "$box/same"
  "$tessera" rl branch "$box/run" 5 --out "$box/other" --set rl.kl.coefficient=0.5 -n 2 --quiet >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
  expect "a branch with a change parts after the step" python3 - "$box" <<'PY'
import json, sys
read = lambda name: [line["loss"] for line in map(json.loads, open(f"{sys.argv[1]}/{name}/metrics.jsonl")) if "loss" in line]
run, other = read("run"), read("other")
assert len(run) == len(other) == 8 and run[:5] == other[:5] and run[5:] != other[5:], (run, other)
told = json.load(open(sys.argv[1] + "/other/branch.json"))
assert told["step"] == 5 and told["changes"] == ["rl.kl.coefficient=0.5"], told
PY
  "$tessera" rl branch "$box/run" 8 --out "$box/longer" --set trainer.max_steps=10 --no-training >"$box/out" 2>"$box/err" ||
    { cat "$box/out" "$box/err" && exit 1; }
  timeout 100 "$tessera" train "$box/longer/config.json" >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "ten steps" test "$(tail -1 "$box/longer/metrics.jsonl" | python3 -c 'import json, sys; print(json.loads(sys.stdin.read())["step"])')" = 10
  refuses "cannot change model" "$tessera" rl branch "$box/run" 5 --out "$box/no" --set model.hidden_size=64
  refuses "is not empty" "$tessera" rl branch "$box/run" 5 --out "$box/same"
  refuses "has made 8 updates" "$tessera" rl branch "$box/run" 9 --out "$box/no"
  expect "nothing is left of a refusal" test ! -e "$box/no"
}

claim "an alarm sends a run back, as often as allowed, and the doctor says so" goes_back
claim "held-out prompts are answered and rewarded" evaluates
claim "a run branches off another" branches
claims_done
