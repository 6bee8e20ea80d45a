#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Ranks that only write rollouts while others learn: the example learns, with the same bits on any ranks and after a kill of one of them.
#   usage: rl_overlap_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
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

learns() {
  digits
  train whole 2
  expect "digits that are copied, by rollouts that are one version old" python3 - "$box/whole/metrics.jsonl" <<'PY'
import json, sys
terms = [line["terms"] for line in map(json.loads, open(sys.argv[1])) if "terms" in line]
last = [one["reward"] for one in terms[-10:]]
assert sum(last) / len(last) > 0.9, last
assert [one["staleness"] for one in terms] == [0] + [1] * (len(terms) - 1)
assert all(0 <= one["learners_waited"] <= 1 and 0 <= one["generators_waited"] <= 1 for one in terms)
assert all(0.5 < one["ratio"] < 2 <= 2 * one["ratio_max"] / one["ratio"] for one in terms[1:])
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
claim "a model learns from rollouts that other ranks wrote meanwhile" learns
claim "rollouts one version behind are the same on any ranks, after a kill, and in a longer run" killed
claims_done
