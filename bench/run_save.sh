#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the cost of saving for the 124M GPT-2 step (B=4, T=512, bf16, 1.4 GiB per checkpoint): no save, a background save
# every ten steps, and a foreground save every ten steps, alternately.
#
# usage: bench/run_save.sh [ROUNDS] [FOLDER]   FOLDER: on the disk to be measured (default: TMPDIR)
#
# The stall is the time for which the saving step waits. The lost time is the stall plus the additional time of the next three
# steps compared with the other steps of the same ten: the writer's share of the cores. The speed of the machine varies more than
# that from run to run.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-1}
source bench/by_turns.sh
ours step_bench
work=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/tessera-save-XXXXXX")
trap 'rm -rf "$results" "$work"' EXIT

# case_of NAME OPTIONS...: like case_of in by_turns.sh, for tessera's step with a folder for checkpoints.
case_of() {
  local name=$1 line
  shift
  sync
  line=$(python3 bench/peers/quiet_run.py -- "$bench" --batch 4 --length 512 --dtype bf16 --steps 20 "${layout[@]}" \
    --save-dir "$work/checkpoints" "$@" | grep '^{' | tail -n 1)
  rm -rf "$work/checkpoints"
  printf '%-12s %s\n' "$name" "$line"
  printf '%s\t%s\n' "$name" "$line" >>"$results"
}

for ((round = 1; round <= rounds; ++round)); do
  for shape in 1x2 2x1; do
    layout=(--ranks "${shape%x*}" --threads "${shape#*x}")
    case_of "$shape none"
    case_of "$shape beside" --save-every 10 --save beside
    case_of "$shape waiting" --save-every 10 --save waiting
  done
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
stalls, steps, lost = {}, {}, {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    result = json.loads(line)
    ms, waits = result["step_ms"], result.get("stall_ms", [])
    stalls.setdefault(name, []).extend(waits)
    steps.setdefault(name, []).extend(ms)
    for n, wait in enumerate(waits):
        ten = ms[10 * n:10 * n + 10]
        usual = statistics.median(ten[:6] + ten[9:])  # the save follows the sixth step
        outside = wait if result["save"] == "waiting" else 0.0  # a background save is part of the steps' own time
        lost.setdefault(name, []).append((outside + sum(ten[6:9]) - 3 * usual) / (outside + sum(ten)))
print("\n| ranks x threads | saving | tokens/s | stall of a save, ms | of all steps | lost |")
print("|---|---|---|---|---|---|")
for shape in ("1x2", "2x1"):
    step = statistics.median(steps[shape + " none"])
    print(f"| {shape} | none | {2048e3 / step:.0f} | | | |")
    for way in ("beside", "waiting"):
        name = f"{shape} {way}"
        stall = statistics.median(stalls[name])
        share = sum(stalls[name]) / sum(steps[name])
        rate = 2048e3 / statistics.median(steps[name])
        print(f"| {shape} | {way} | {rate:.0f} | {stall:.0f} | {100 * share:.1f} % | {100 * statistics.median(lost[name]):.1f} % |")
SUMMARY
