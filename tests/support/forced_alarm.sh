# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For tests of what an alarm of the task rl does: the alarm comes from rewards that a program gives, not from what the policy learns.

# policy_with_an_alarm KEYS: writes $box/policy.json, in which KEYS are further keys of rl. Rewards are bits of a checksum in rollouts
# 0 to 11 and equal from rollout 12 on, so that the alarm equal_groups begins there and has held for ten rollouts in rollout 21. The
# rate is so low that the policy stays as it begins, and other alarms stay silent.
policy_with_an_alarm() {
  local prompt graded
  for ((prompt = 0; prompt < 400; ++prompt)); do
    graded=$((prompt < 12 * 8))
    printf '{"prompt": "p%d", "answer": "x", "graded": %d}\n' $prompt $graded
  done >"$box/prompts.jsonl"
  cat >"$box/reward.py" <<'PY'
import json, sys, zlib
for line in sys.stdin:
    given = json.loads(line)
    reward = zlib.crc32(given["completion"].encode()) % 2 if given["record"]["graded"] else 1
    print(json.dumps({"id": given["id"], "reward": reward}), flush=True)
PY
  cat >"$box/policy.json" <<JSON
{
  "model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "dropout": 0}, "task": "rl",
  "rl": {"samples": 4, "max_new_tokens": 80, "rewards": [{"type": "command", "command": ["python3", "-u", "$box/reward.py"]}], $1},
  "data": {"train": "$box/prompts.jsonl", "sequence_length": 96, "shuffle": false},
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "optimizer": {"params": {"lr": 1e-6}},
  "trainer": {"max_steps": 40}, "checkpoint": {"every": 2, "keep": 40}, "run": {"threads_per_rank": 1}
}
JSON
}
