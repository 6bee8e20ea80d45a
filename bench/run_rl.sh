#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures iterations (rollout and update) of GRPO and PPO with a LLaMA of 125M (bf16, 8 prompts x 4 samples, 64 + 128 tokens, two
# threads): GRPO by turns with TRL, with and without rl.parity exact; PPO with a critic and a reward model of the same size, by turns with
# TRL's if there is one; and the generation of 32 sequences at a time against one.
#
# usage: bench/run_rl.sh [ROUNDS]     PEERS: a Python that has torch 2.11, transformers, trl and datasets (default ~/peers/bin/python);
#                                     PEERS=none measures tessera alone. PEERS_PPO: one that has trl 1.12.0, the last release with
#                                     PPO (default none). LAYERS (12) and ANSWER (128) make a trial shorter.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-2} layers=${LAYERS:-12} answer=${ANSWER:-128} steps=3
source bench/by_turns.sh
ours tessera
[[ ${PEERS:-} == none ]] || theirs torch transformers trl datasets
data=$(mktemp -d)
trap 'rm -rf "$data" "$results"' EXIT
python3 bench/peers/trl_train.py data --data "$data" --steps "$steps" --answer "$answer"
model='{"family": "llama", "num_layers": '$layers', "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048,
        "vocab_size": 32000, "max_positions": 2048}'
# config NAME TASK DATA BATCH MORE
config() {
  cat >"$data/$1.json" <<TEXT
{
  "model": $model,
  "tokenizer": {"type": "file", "vocab": "$data/tokenizer.json"},
  "task": $2,
  "data": {"train": "$data/$3", "sequence_length": $((2 * (64 + answer)))},
  "bf16": {"enabled": true},
  "train_batch_size": $4, "train_micro_batch_size_per_gpu": $(($4 < 8 ? $4 : 8)),
  "optimizer": {"params": {"lr": 1e-6}},
  "trainer": {"max_steps": $5},
  "steps_per_print": 1,
  "run": {"dir": "$data/$1"}
}
TEXT
}
rl() { # ALGORITHM SAMPLES MORE: the task's parameters
  echo '{"type": "rl", "params": {"algorithm": "'"$1"'", "samples": '"$2"', "max_new_tokens": '"$answer"',
          "rewards": ['"$3"'], "kl": {"coefficient": '"$4"'}, "parity": "'"$5"'"}}'
}
length='{"type": "length", "max": 100}'
config reward '{"type": "reward"}' pairs.jsonl 8 1
config grpo "$(rl grpo 4 "$length" 0 measure)" prompts.jsonl 32 $steps
config grpo_exact "$(rl grpo 4 "$length" 0 exact)" prompts.jsonl 32 $steps
config ppo "$(rl ppo 4 '{"type": "model", "from": "'"$data/reward"'"}' 0.05 measure)" prompts.jsonl 32 $steps
config one "$(rl reinforce++ 1 "$length" 0 off)" prompts.jsonl 1 $steps
config many "$(rl grpo 4 "$length" 0 off)" prompts.jsonl 32 $steps
OMP_NUM_THREADS=2 "$bench" train "$data/reward.json" --quiet >&2 # the reward model of PPO

# One JSON line of a run: medians of its steps but for the first.
cat >"$data/ours.sh" <<'TEXT'
set -euo pipefail
rm -rf "$2/$3"
OMP_NUM_THREADS=2 "$1" train "$2/$3.json" --set checkpoint.final=false --quiet >&2
python3 - "$2/$3" <<'SUMMARY'
import json, statistics, sys
rows = [row for row in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "step_ms" in row][1:]
tokens = {}
for line in map(json.loads, open(sys.argv[1] + "/rollouts.jsonl")):
    if line["kind"] == "completion":
        tokens[line["version"]] = tokens.get(line["version"], 0) + len(line["ids"])
made = statistics.median(list(tokens.values())[1:])
step, rollout = (statistics.median(row[key] for row in rows) for key in ("step_ms", "data_ms"))
print(json.dumps({"step_ms": round(step, 1), "tokens_per_s": round(made / step * 1e3, 1), "rollout_share": round(rollout / step, 3),
                  "rollout_tokens_per_s": round(made / rollout * 1e3, 1),
                  "peak_mb": round(max(row["mem_peak_bytes"] for row in rows) / 2**20)}))
SUMMARY
TEXT
for ((round = 1; round <= rounds; ++round)); do
  for name in grpo grpo_exact ppo one many; do
    case_of "ours $name" bash "$data/ours.sh" "$bench" "$data" "$name"
  done
  [[ ${PEERS:-} == none ]] ||
    case_of "trl grpo" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/trl_train.py grpo --data "$data" --steps "$steps" --answer "$answer" --layers "$layers"
  [[ ${PEERS_PPO:-none} == none ]] ||
    case_of "trl ppo" env OMP_NUM_THREADS=2 "$PEERS_PPO" bench/peers/trl_train.py ppo --data "$data" --steps "$steps" --answer "$answer" --layers "$layers"
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
found = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    found.setdefault(name, []).append(json.loads(line))
median = lambda name, key: statistics.median(one[key] for one in found[name])
for name, lines in found.items():
    memory = lines[0].get("peak_mb", lines[0].get("peak_rss_mb"))
    share = f", rollout {100 * median(name, 'rollout_share'):.0f} %" if "rollout_share" in lines[0] else ""
    print(f"{name}: {median(name, 'tokens_per_s'):.0f} tokens/s, {memory} MB{share}")
print(f"rl.parity exact costs {100 * (median('ours grpo_exact', 'step_ms') / median('ours grpo', 'step_ms') - 1):.0f} % of a GRPO iteration")
print(f"32 sequences / one, generation: {median('ours many', 'rollout_tokens_per_s') / median('ours one', 'rollout_tokens_per_s'):.2f}")
if "trl grpo" in found:
    print(f"ours / TRL, a GRPO iteration: {median('ours grpo', 'tokens_per_s') / median('trl grpo', 'tokens_per_s'):.2f}")
if "trl ppo" in found:
    print(f"ours / TRL, a PPO iteration: {median('ours ppo', 'tokens_per_s') / median('trl ppo', 'tokens_per_s'):.2f}")
SUMMARY
