#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive multiprocess
# timeout: 3600
# The example of reinforcement learning learns, with each kernel variant that this CPU has and with several seeds, alone and with
# rollouts that are one version old.   usage: rl_learning_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: rl_learning_test.sh PROGRAM}")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

has_variant() { TESSERA_ISA=$1 "$tessera" report --json 2>/dev/null | grep -q "\"kernels\": \"$1\""; }

learns() { # learns VARIANT RANKS KEY=VALUE...
  local variant=$1 ranks=$2 seed
  shift 2
  "$repository/examples/rlhf/make_digits.py" 512 >"$box/digits.jsonl"
  for seed in 1 2 3; do
    TESSERA_ISA=$variant timeout 300 "$tessera" train "$repository/examples/rlhf/grpo.json" -n "$ranks" --set "run.dir=$box/$seed" \
      --set "data.train=$box/digits.jsonl" --set run.threads_per_rank=1 --set "trainer.seed=$seed" "$@" >"$box/out" 2>"$box/err" ||
      { cat "$box/out" "$box/err" && exit 1; }
    expect "a reward with seed $seed that grows" python3 - "$box/$seed/metrics.jsonl" <<'PY'
import json, sys
rewards = [line["terms"]["reward"] for line in map(json.loads, open(sys.argv[1])) if "terms" in line]
first, last = sum(rewards[:10]) / 10, sum(rewards[100:]) / 100
# A guess among the digits earns 0.1. On an AVX-512 CPU, with each variant and seed, the last 100 steps earned 0.93 to 0.99; single
# steps of rollouts that are one version old earned as little as 0.6.
assert len(rewards) == 200 and first < 0.05 and last > 0.7, (first, last)
PY
  done
}

for variant in portable avx2 avx512 avx512_bf16 amx; do
  has_variant $variant || continue
  claim "a model learns by rewards to copy digits ($variant)" learns $variant 1
  claim "a model learns from rollouts that other ranks wrote meanwhile ($variant)" learns $variant 2 --set rl.overlap=1
done
claims_done
