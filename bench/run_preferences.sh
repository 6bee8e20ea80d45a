#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a DPO step of a LLaMA of 125M (bf16, 8 pairs of 2 x (64 + 128) tokens, two threads), tessera and TRL alternately.
#
# usage: bench/run_preferences.sh [ROUNDS]     PEERS: a Python that has torch 2.11, transformers, trl and datasets
#                                              (default ~/peers/bin/python)
#
# Both programs compute the log-probabilities of the reference once, before the steps that are counted.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-2}
source bench/by_turns.sh
ours tessera
theirs torch transformers trl datasets
data=$(mktemp -d)
trap 'rm -rf "$data" "$results"' EXIT
python3 bench/peers/trl_train.py data --data "$data" --steps 6
cat >"$data/dpo.json" <<TEXT
{
  "model": {"family": "llama", "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 4, "ffn_hidden_size": 2048,
            "vocab_size": 32000, "max_positions": 2048},
  "tokenizer": {"type": "file", "vocab": "$data/tokenizer.json"},
  "task": "prefer",
  "prefer": {"method": "dpo"},
  "data": {"train": "$data/pairs.jsonl", "sequence_length": 384},
  "bf16": {"enabled": true},
  "train_batch_size": 8,
  "optimizer": {"params": {"lr": 1e-6}},
  "trainer": {"max_steps": 6},
  "checkpoint": {"final": false},
  "run": {"dir": "$data/run"}
}
TEXT
# One JSON line of our run: the median of its steps but for the first.
cat >"$data/ours.sh" <<'TEXT'
set -euo pipefail
rm -rf "$2/run"
OMP_NUM_THREADS=2 "$1" train "$2/dpo.json" --quiet >&2
python3 - "$2/run/metrics.jsonl" <<'SUMMARY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
steps = [row["step_ms"] for row in rows if "step_ms" in row][1:]
print(json.dumps({"step_ms": round(statistics.median(steps), 1), "tokens_per_s": round(8 * 2 * 192 / statistics.median(steps) * 1e3, 1),
                  "peak_mb": round(max(row["mem_peak_bytes"] for row in rows) / 2**20)}))
SUMMARY
TEXT
for ((round = 1; round <= rounds; ++round)); do
  case_of "ours dpo" bash "$data/ours.sh" "$bench" "$data"
  case_of "trl dpo" env OMP_NUM_THREADS=2 "${tuned[@]}" "$peers" bench/peers/trl_train.py dpo --data "$data" --steps 6
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    rates.setdefault(name, []).append(json.loads(line))
for name, found in rates.items():
    print(f"{name}: {statistics.median(r['tokens_per_s'] for r in found):.0f} tokens/s, {found[0].get('peak_mb', found[0].get('peak_rss_mb'))} MB")
median = {name: statistics.median(r["tokens_per_s"] for r in found) for name, found in rates.items()}
print(f"ours / TRL, a DPO step: {median['ours dpo'] / median['trl dpo']:.2f}")
SUMMARY
