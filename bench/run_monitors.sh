#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what watching costs: the quickstart's step and the 124M GPT-2 step (B=4, T=512, bf16, 1 rank) with no monitor, with all
# monitors and per-step reports, and with a trace of every step, alternately.
#
# usage: bench/run_monitors.sh [ROUNDS] [QUICKSTART_STEPS] [GPT2_STEPS]      default: 3 400 12; a trace has at most 100 steps
#
# Step times are those of metrics.jsonl: from the end of an update to the end of the next one, hooks included.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3} quick=${2:-400} large=${3:-12}
source bench/by_turns.sh
ours tessera
folder=$(mktemp -d)
trap 'rm -rf "$results" "$folder"' EXIT

cat >"$folder/gpt2.json" <<EOF
{
  "model": {"preset": "gpt2-small", "dropout": 0.0}, "tokenizer": {"type": "gpt2"},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 512},
  "train_batch_size": 4, "bf16": {"enabled": true}, "steps_per_print": 1000
}
EOF
watched=()
for section in tensorboard csv_monitor wandb comet prometheus comms_logger; do
  watched+=(--set "$section.enabled=true")
done
watched+=(--set 'prometheus.address="127.0.0.1:0"' --set wall_clock_breakdown=true --set memory_breakdown=true)

# steps_of NAME CONFIG STEPS OPTIONS...: trains, and stores the times of the steps but the first tenth.
steps_of() {
  local name=$1 config=$2 steps=$3
  shift 3
  rm -rf "$folder/run"
  "$bench" train "$config" -n 1 --quiet --set "run.dir=\"$folder/run\"" --set "trainer.max_steps=$steps" --set eval.every=0 \
    --set checkpoint.final=false "$@" >"$folder/out" 2>&1 || { cat "$folder/out" >&2; exit 1; }
  python3 - "$name" "$folder/run/metrics.jsonl" >>"$results" <<'TIMES'
import json, sys
times = [row["step_ms"] for row in map(json.loads, open(sys.argv[2])) if "step_ms" in row]
print(sys.argv[1], json.dumps(times[max(2, len(times) // 10):]), sep="\t")
TIMES
}

for ((round = 1; round <= rounds; ++round)); do
  for shape in quickstart gpt2; do
    if [[ $shape == quickstart ]]; then config=examples/configs/quickstart.json steps=$quick; else config=$folder/gpt2.json steps=$large; fi
    steps_of "$shape off" "$config" "$steps"
    steps_of "$shape watched" "$config" "$steps" "${watched[@]}"
    steps_of "$shape traced" "$config" "$steps" --set "profile.steps=[2, $((steps < 101 ? steps : 101))]"
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
times = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    kept = json.loads(line)
    # Only the traced steps count where there is a trace.
    times.setdefault(name, []).extend(kept[:90] if name.endswith("traced") else kept)
print("\n| step | watching | median, ms | mean, ms | cost by medians | cost by means |")
print("|---|---|---|---|---|---|")
for name, all_of in times.items():
    shape, way = name.split()
    off = times[shape + " off"]
    median, mean = statistics.median(all_of), statistics.mean(all_of)
    print(f"| {shape} | {way} | {median:.2f} | {mean:.2f} | {100 * (median / statistics.median(off) - 1):+.2f} % "
          f"| {100 * (mean / statistics.mean(off) - 1):+.2f} % |")
SUMMARY
