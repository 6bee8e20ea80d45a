#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the losses of trainings whose gradients, or weights and gradients, travel between two hosts in 16 or 8 bits with those of
# a training in fp32: a GPT-2 of 4 layers of 128 channels, two hosts with a rank each behind a stand-in for ssh.
#
# usage: bench/run_travel_losses.sh [STEPS [SETTING...]]   (default 200; settings of all trainings: gradient_clipping=0)
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 2
source bench/by_turns.sh
source tests/support/claims.sh
source tests/support/ssh_stand_in.sh
set -e
ours tessera
bench=$(realpath "$bench")
folder=$(mktemp -d)
trap 'rm -rf -- "$results" "$folder"' EXIT
stand_in_for_ssh "$folder/bin"
printf 'node-a slots=1\nnode-b slots=1\n' >"$folder/hosts"
cat >"$folder/gpt2.json" <<CONFIG
{
  "model": {"num_layers": 4, "hidden_size": 128, "num_heads": 4},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 64},
  "train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"params": {"lr": 1e-3}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20, "warmup_max_lr": 1e-3}},
  "trainer": {"max_steps": ${1:-200}}, "run": {"threads_per_rank": 1}, "checkpoint": {"final": false, "every": 0}
}
CONFIG
of_all=("${@:2}")
train() { # NAME SETTING...
  local name=$1 setting options=()
  shift
  for setting in "${of_all[@]}" "$@"; do options+=(--set "$setting"); done
  "$bench" train "$folder/gpt2.json" -H "$folder/hosts" --master_addr 127.0.0.1 --set "run.dir=$folder/$name" "${options[@]}" --quiet >&2
}
train fp32
train bf16 communication_data_type=bf16
train int8 communication_data_type=int8
feedback=(zero_optimization.zeropp_loco_param.err_beta=0.8)
train int8_feedback communication_data_type=int8 "${feedback[@]}"
stage3=(zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0)
both=("${stage3[@]}" zero_optimization.zero_quantized_weights=true zero_optimization.zero_quantized_gradients=true)
train int8_weights "${both[@]}"
train int8_weights_feedback "${both[@]}" "${feedback[@]}"

python3 - "$folder" <<'TABLE'
import json, statistics, sys

def losses(name):
    return [row["loss"] for row in map(json.loads, open(f"{sys.argv[1]}/{name}/metrics.jsonl")) if "step_ms" in row]

exact = losses("fp32")
print("| what travels | mean loss of the last 20 steps | against fp32 | largest difference of a step |")
print("|---|---|---|---|")
for name, text in (("fp32", "fp32"), ("bf16", "gradients in bf16"), ("int8", "gradients in 8 bits"),
                   ("int8_feedback", "gradients in 8 bits with error feedback"),
                   ("int8_weights", "gradients and weights in 8 bits (stage 3)"),
                   ("int8_weights_feedback", "gradients with error feedback and weights in 8 bits")):
    mine = losses(name)
    assert len(mine) == len(exact), (name, len(mine), len(exact))
    mean, of_exact = statistics.mean(mine[-20:]), statistics.mean(exact[-20:])
    most = max(abs(a - b) / b for a, b in zip(mine, exact))
    print(f"| {text} | {mean:.4f} | {100 * (mean / of_exact - 1):+.3f} % | {100 * most:.3f} % |")
TABLE
