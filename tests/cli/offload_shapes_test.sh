#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: exhaustive
# timeout: 7200
# A LLaMA-7B shape trains through a disk in 12 GiB of memory, and a LoRA of it from a base in four bits in 10 GiB; the plan says
# what the process needs. Full training has what the disk has room for: all 32 layers with AdamW and fp32 masters (101 GiB), all
# 32 layers with states in 8 bits and masters in 16 (40 GiB), or 8 layers (26 GiB).
# usage: offload_shapes_test.sh PROGRAM [FOLDER]      FOLDER: on the disk; default: $TMPDIR or /tmp
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=${1:?usage: offload_shapes_test.sh PROGRAM [FOLDER]}
disk=${2:-${TMPDIR:-/tmp}}
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
free=$(($(stat -f -c '%a * %S' "$disk") / 1024 / 1024 / 1024))

# shape LAYERS MORE [MASTERS IN 16 BITS]: the configuration of a few steps.
shape() {
  cat <<JSON
{"model": {"family": "llama", "num_layers": $1, "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 11008,
   "vocab_size": 32000, "max_positions": 2048},
 "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 128}, "tokenizer": {"type": "byte"},
 "train_batch_size": 1, "bf16": {"enabled": true, "bf16_master_weights_and_grads": ${3:-false}}, "trainer": {"max_steps": 2},
 "activation_checkpointing": {"granularity": "full"},
 "checkpoint": {"every": 0, "final": false, "async": false}, "run": {"dir": "$box/run"}, $2}
JSON
}

# below LIMIT: trains two steps, and checks the peak of the process and that of the plan, in GiB.
below() {
  python3 - "$1" "$tessera" train "$box/shape.json" <<'PY' || exit 1
import re, resource, subprocess, sys
limit, command = float(sys.argv[1]), sys.argv[2:]
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(done.stdout)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
plan = float(re.search(r"^memory +([0-9.]+) GiB", done.stdout, re.M).group(1))
print(f"peak {peak:.2f} GiB, plan {plan} GiB, limit {limit} GiB, exit code {done.returncode}")
# The program itself, with its libraries, is not in the plan.
sys.exit(done.returncode != 0 or peak >= limit or peak > 1.05 * plan + 0.6)
PY
  expect "both steps in the metrics" test "$(grep -c '"loss":[0-9]' "$box/run/metrics.jsonl")" -ge 2
}

through_a_disk() {
  shape "$1" '"optimizer": {"type": "'"$2"'", "params": {"lr": 1e-5}}, "data_types": {"grad_accum_dtype": "bf16"},
    "tiling": {"lm_head": [1, 8]},
    "zero_optimization": {"stage": 3, "sub_group_size": 16777216,
      "offload_optimizer": {"device": "nvme", "nvme_path": "'"$disk"'", "gradients": true},
      "offload_param": {"device": "nvme", "nvme_path": "'"$disk"'"}}' "${3:-false}" >"$box/shape.json"
  below 12
}

lora() {
  shape 32 '"adapter": {"type": "lora", "r": 8, "quantize_base": "nf4"},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}' >"$box/shape.json"
  below 10
}

if ((free >= 105)); then
  claim "a LLaMA-7B shape with AdamW through a disk in 12 GiB" through_a_disk 32 AdamW
elif ((free >= 44)); then
  claim "a LLaMA-7B shape with AdamW in 8 bits through a disk in 12 GiB" through_a_disk 32 AdamW8bit true
elif ((free >= 30)); then
  claim "8 layers of LLaMA-7B with AdamW through a disk in 12 GiB" through_a_disk 8 AdamW
else
  echo "skipped full training: $disk has $free GiB free, and the states, gradients and weights of 8 layers need 30 GiB"
fi
claim "LoRA of a LLaMA-7B shape in four bits in 10 GiB" lora
claims_done
