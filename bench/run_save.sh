#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What saving costs the 124M GPT-2 step (B=4, T=512, bf16, 1.4 GiB a checkpoint): no save, one in ten steps beside the
# training, and one in ten that it waits for, by turns.
#
# usage: bench/run_save.sh [ROUNDS] [FOLDER]   FOLDER: on the disk that is to be measured (default: TMPDIR)
#
# The stall is what the saving step waits; the loss of throughput has the disk and the cores that the writer takes as well.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
bench=build/release/bin/step_bench
[[ -x $bench ]] || { echo "run_save: $bench is not built; fix: tools/build.sh release step_bench" >&2; exit 8; }
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/tessera-save-XXXXXX")
trap 'rm -rf "$work"' EXIT

# case_of NAME OPTIONS...: runs it and keeps its JSON line under the name.
case_of() {
  local name=$1 line
  shift
  sync
  line=$(python3 bench/peers/quiet_run.py -- "$bench" --batch 4 --length 512 --dtype bf16 --steps 20 "${layout[@]}" \
    --save-dir "$work/checkpoints" "$@" | grep '^{' | tail -n 1)
  rm -rf "$work/checkpoints"
  printf '%-12s %s\n' "$name" "$line"
  printf '%s\t%s\n' "$name" "$line" >>"$work/results"
}

for ((round = 1; round <= rounds; ++round)); do
  for shape in 1x2 2x1; do
    layout=(--ranks "${shape%x*}" --threads "${shape#*x}")
    case_of "$shape none"
    case_of "$shape beside" --save-every 10 --save beside
    case_of "$shape waiting" --save-every 10 --save waiting
  done
done

python3 - "$work/results" <<'SUMMARY'
import json, statistics, sys
walls, stalls, steps = {}, {}, {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    result = json.loads(line)
    walls.setdefault(name, []).append(result["wall_ms"])
    stalls.setdefault(name, []).extend(result.get("stall_ms", []))
    steps.setdefault(name, []).extend(result["step_ms"])
print("\n| ranks x threads | saving | stall of a save, ms | of a step | of all steps | tokens/s lost |")
print("|---|---|---|---|---|---|")
for shape in ("1x2", "2x1"):
    none = statistics.median(walls[shape + " none"])
    step = statistics.median(steps[shape + " none"])
    for way in ("beside", "waiting"):
        name = f"{shape} {way}"
        stall = statistics.median(stalls[name])
        lost = 1 - none / statistics.median(walls[name])
        share = sum(stalls[name]) / sum(steps[name])
        print(f"| {shape} | {way} | {stall:.0f} | {100 * stall / step:.0f} % | {100 * share:.1f} % | {100 * lost:.1f} % |")
SUMMARY
