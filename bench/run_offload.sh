#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Steps of GPT-2 with the optimizer's state, and with the weights too, on a disk, by turns with the same steps in memory, and the
# speed of the disk in the same minute.
#   usage: bench/run_offload.sh FOLDER [PRESET...]        presets: gpt2-small (default), gpt2-medium, gpt2-xl
# PLACES ("memory optimizer both") can also have gradients, where the sums of gradients rest on the disk beside optimizer and weights,
# recompute, which keeps inputs of blocks in memory, and all, where they rest on the disk too. PEER names a python with DeepSpeed, whose ZeRO-3 with NVMe offload of its optimizer takes its turn then. BATCH (4): sequences of
# SEQUENCE (512) tokens.
# Prints one line for each run: milliseconds of a step, the share of it that waited for the disk, bytes that travelled in a step,
# bytes per second of them, peak memory of the rank. ROUNDS (3) and STEPS (6) can be set; the first two steps of a run do not count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tessera=$PWD/build/release/bin/tessera
disk=${1:?usage: bench/run_offload.sh FOLDER [PRESET...]}
shift
presets=("$@")
((${#presets[@]})) || presets=(gpt2-small)
rounds=${ROUNDS:-3} steps=${STEPS:-6}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - >"$work/text.txt" <<'PY'
import random
random.seed(1)
words = ["".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(2, 9))) for _ in range(2000)]
print(" ".join(random.choice(words) for _ in range(120000)))
PY

# config PLACE PRESET: writes the configuration of a run.
config() {
  local state=none weights=none sums=false
  [[ $1 == memory ]] || state=nvme
  [[ $1 == both || $1 == gradients || $1 == all ]] && weights=nvme
  [[ $1 == gradients || $1 == all ]] && sums=true
  local granularity=none inputs=none
  [[ $1 == recompute || $1 == all ]] && granularity=full
  [[ $1 == recompute ]] && state=none
  [[ $1 == all ]] && inputs=nvme
  cat <<JSON
{"model": {"preset": "$2", "vocab_size": 50257}, "data": {"train": "$work/text.txt", "sequence_length": ${SEQUENCE:-512}},
 "tokenizer": {"type": "byte"}, "train_batch_size": ${BATCH:-4}, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "trainer": {"max_steps": $steps},
 "zero_optimization": {"stage": 3,
   "offload_optimizer": {"device": "$state", "nvme_path": "$disk", "gradients": $sums},
   "offload_param": {"device": "$weights", "nvme_path": "$disk"}},
 "activation_checkpointing": {"granularity": "$granularity", "offload": {"device": "$inputs", "nvme_path": "$disk"}},
 "checkpoint": {"every": 0, "final": false, "async": false}, "run": {"threads_per_rank": ${THREADS:-2}}}
JSON
}

# summary RUN: medians of the steps that count.
summary() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
rows = [row for row in rows if "step_ms" in row][2:]
middle = lambda key: statistics.median(row.get(key, 0) for row in rows)
moved = middle("disk_read_bytes") + middle("disk_written_bytes")
print(f"{middle('step_ms'):9.0f} ms  disk wait {100 * middle('disk_ms') / middle('step_ms'):4.0f} %  "
      f"{moved / 1e9:6.2f} GB  {moved / middle('step_ms') / 1e6:5.2f} GB/s  peak {max(row['mem_peak_bytes'] for row in rows) / 2**20:7.0f} MiB  "
      f"{middle('tokens_per_s'):7.0f} tok/s")
PY
}

# peer PRESET: a run of DeepSpeed's.
peer() {
  local -A sizes=([gpt2-small]=124M [gpt2-medium]=355M [gpt2-xl]=1558M)
  (cd bench/peers && "$PEER" deepspeed_gpt2_train.py --nvme "$disk" --procs 1 --threads "${THREADS:-2}" -B "${BATCH:-4}" \
    -T "${SEQUENCE:-512}" --model "${sizes[$1]}" --vocab 50257 --steps $((steps - 2)) --warmup 2 2>"$work/peer.log" | tail -1) ||
    tail -5 "$work/peer.log" >&2
}

for preset in "${presets[@]}"; do
  "$tessera" bench io "$disk" --blocks 1 --depths 4,8 --size 512
  for ((round = 1; round <= rounds; ++round)); do
    for place in ${PLACES:-memory optimizer both}; do
      config "$place" "$preset" >"$work/$place.json"
      rm -rf "${work:?}/$place"
      "$tessera" train "$work/$place.json" --set run.dir="$work/$place" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
      printf '%-12s %-10s %s\n' "$preset" "$place" "$(summary "$work/$place")"
    done
    [[ -z ${PEER:-} ]] || peer "$preset"
  done
done
