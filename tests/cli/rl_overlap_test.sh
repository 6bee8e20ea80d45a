#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Ranks that only write rollouts while others learn: the same bits on any ranks, on two hosts behind a stand-in for ssh, and after a
# kill of one of them; an alarm sends such a run back. rl_learning_test.sh shows that such a run learns.
#   usage: rl_overlap_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/forced_alarm.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
tessera=$(realpath "${1:?usage: rl_overlap_test.sh PROGRAM}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

words() { # words NAME RANKS KEY=VALUE...: the command line of a training
  local name=$1 ranks=$2
  shift 2
  printf '%s\n' train "$repository/examples/rlhf/grpo.json" -n "$ranks" --set rl.overlap=1 --set "run.dir=$box/$name" \
    --set "data.train=$box/digits.jsonl" --set run.threads_per_rank=1 "$@"
}
train() {
  local line
  mapfile -t line < <(words "$@")
  timeout 200 "$tessera" "${line[@]}" >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
}
refuses() { # refuses WORDS COMMAND...
  local words=$1
  shift
  if "$@" >"$box/out" 2>&1; then echo "accepted: $*" && exit 1; fi
  expect "a refusal that says $words" says "$words" "$box/out"
}
digits() { "$repository/examples/rlhf/make_digits.py" 512 >"$box/digits.jsonl"; }

one_version_behind() {
  digits
  train whole 2 --set trainer.max_steps=12
  expect "rollouts that are one version old, and ratios that say so" python3 - "$box/whole/metrics.jsonl" <<'PY'
import json, sys
terms = [line["terms"] for line in map(json.loads, open(sys.argv[1])) if "terms" in line]
assert [one["staleness"] for one in terms] == [0] + [1] * 11, terms
assert all(0 <= one["learners_waited"] <= 1 and 0 <= one["generators_waited"] <= 1 for one in terms), terms
# The policy that learns from the first rollout wrote it, and has no ratio; later ones were written before the last update.
assert "ratio" not in terms[0] and all(one["ratio_max"] > 1 for one in terms[1:]), terms
PY
}
killed() {
  digits
  local short=(--set trainer.max_steps=16 --set checkpoint.every=3)
  train one 2 "${short[@]}"
  train two 3 "${short[@]}"
  expect "equal runs with one rank that learns and with two" "$tessera" compare "$box/one" "$box/two"
  expect "equal ledgers" cmp "$box/one/rollouts.jsonl" "$box/two/rollouts.jsonl"
  train two 3 --set rl.rollout_ranks=2 "${short[@]}" --resume never
  expect "equal runs with one rank that writes and with two" "$tessera" compare "$box/one" "$box/two"
  # The last rank, which writes, is killed in the midst of the run.
  local line job writer
  mapfile -t line < <(words torn 3 "${short[@]}")
  timeout 200 "$tessera" "${line[@]}" >"$box/out" 2>"$box/err" &
  job=$!
  until [[ $(wc -l <"$box/torn/rollouts.jsonl" 2>/dev/null || echo 0) -ge 3000 ]]; do sleep 0.01; done
  writer=$(pgrep -P "$(pgrep -P "$job")" | tail -1)
  kill -KILL "$writer"
  if wait "$job"; then echo "the job went on without the rank" && exit 1; fi
  expect "the name of the rank" says "rank 2 was lost" "$box/err"
  train torn 2 "${short[@]}"
  expect "equal runs after a kill" "$tessera" compare "$box/one" "$box/torn"
  expect "equal ledgers after a kill" cmp "$box/one/rollouts.jsonl" "$box/torn/rollouts.jsonl"
  # More steps than the run was to have: it goes on as if it had been longer.
  train torn 2 --set trainer.max_steps=20 --set checkpoint.every=3
  train longer 2 --set trainer.max_steps=20 --set checkpoint.every=3
  expect "equal runs after more steps" "$tessera" compare "$box/longer" "$box/torn"
  "$tessera" rl replay "$box/torn" 14 >"$box/out" 2>"$box/err" || { cat "$box/out" "$box/err" && exit 1; }
  expect "an update that was made again" says "step 14: equal" "$box/out"
  mapfile -t line < <(words none 1)
  refuses "none is left to learn" "$tessera" "${line[@]}"
  mapfile -t line < <(words dry 3 --dry-run -v)
  "$tessera" "${line[@]}" >"$box/out" 2>&1 || { cat "$box/out" && exit 1; }
  expect "the memory of both kinds of ranks" says "2 ranks learn and 1 only writes rollouts" "$box/out"
  refuses "rl.overlap" "$tessera" rl branch "$box/torn" 14 --out "$box/branch"
}
on_hosts() {
  digits
  stand_in_for_ssh "$box/bin"
  local short=(--set trainer.max_steps=6 --set gradient_reduction=each)
  hosts() { # hosts NAME SLOTS SLOTS KEY=VALUE...: a training on two hosts
    printf 'node-a slots=%s\nnode-b slots=%s\n' "$2" "$3" >"$box/hosts"
    local line
    mapfile -t line < <(words "$1" 1 "${short[@]}" "${@:4}")
    timeout 200 "$tessera" train "${line[1]}" "${line[@]:4}" --hostfile "$box/hosts" --master_addr 127.0.0.1 >"$box/out" 2>"$box/err" ||
      { cat "$box/out" "$box/err" && exit 1; }
  }
  train one 2 "${short[@]}"
  hosts apart 1 1
  expect "the bits of one host, if one host learns and the other writes" "$tessera" compare "$box/one" "$box/apart"
  hosts mixed 1 3 --set rl.rollout_ranks=2
  expect "the bits of one host, if both learn" "$tessera" compare "$box/one" "$box/mixed"
  expect "equal ledgers" cmp "$box/one/rollouts.jsonl" "$box/mixed/rollouts.jsonl"
  refuses "run.min_hosts" "$tessera" train "$repository/examples/rlhf/grpo.json" --hostfile "$box/hosts" \
    --set rl.overlap=1 --set "data.train=$box/digits.jsonl" --set run.min_hosts=1
  expect "no host is left" until_true none_of_its_hosts "$box/bin"
}
goes_back() {
  policy_with_an_alarm '"overlap": 1, "on_alarm": "roll_back", "roll_back": {"rollouts": 1, "most": 2}'
  back() { # back NAME RANKS: the exit code is in $code
    timeout 100 "$tessera" train "$box/policy.json" -n "$2" --set "run.dir=$box/$1" >"$box/out" 2>"$box/err"
    code=$?
  }
  back one 2
  expect "the error of the alarm, exit code 7, not $code" test "$code" = 7
  expect "that the run went back as often as it may" says "has gone back 2 times" "$box/err"
  expect "rollouts that the policy of the checkpoint wrote first, and others behind them" python3 - "$box/one" <<'PY'
import json, sys
lags = {}
for line in map(json.loads, open(sys.argv[1] + "/rollouts.jsonl")):
    if line["kind"] == "completion": lags[line["version"]] = line["version"] - line.get("policy", line["version"])
to = {line["to"] for line in map(json.loads, open(sys.argv[1] + "/roll_backs.jsonl"))}
assert to == {10} and lags[0] == 0, (to, lags)
assert all(lag == (0 if version == 0 or version in to else 1) for version, lag in lags.items()), (to, lags)
PY
  back two 3
  expect "the same with two ranks that learn" cmp "$box/one/rollouts.jsonl" "$box/two/rollouts.jsonl"
  timeout -s KILL 100 "$tessera" train "$box/policy.json" -n 2 --set "run.dir=$box/torn" >/dev/null 2>&1 &
  local job=$!
  until_true test -e "$box/torn/roll_backs.jsonl"
  pkill -KILL -P "$job" || true
  wait "$job" 2>/dev/null || true
  back torn 2
  expect "the same end after a kill" test "$code" = 7
  expect "the same rollouts after a kill" cmp "$box/one/rollouts.jsonl" "$box/torn/rollouts.jsonl"
}
claim "ranks learn from rollouts that others wrote with the policy of the update before" one_version_behind
claim "rollouts one version behind are the same on any ranks, after a kill, and in a longer run" killed
claim "one of two hosts learns and the other one writes" on_hosts
claim "an alarm sends such a run back" goes_back
claims_done
