#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains 320 cells of families, sizes and layouts for a few steps each, and compares time and memory with their plans; half of the models
# are fitted, the others predicted. What was measured stays in FOLDER/cells.jsonl, and the same command goes on.
# usage: bench/run_plan_grid.sh TESSERA FOLDER [ROUNDS] [CELLS] [compare|replan]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tessera=$(realpath "${1:?usage: run_plan_grid.sh TESSERA FOLDER [ROUNDS] [CELLS] [compare|replan]}")
folder=$(realpath -m "${2:?a folder}")
mkdir -p "$folder"
export TESSERA_CACHE=${TESSERA_CACHE:-$folder/cache} OMP_WAIT_POLICY=passive
mkdir -p "$TESSERA_CACHE"
[[ -e $TESSERA_CACHE/machine.json ]] || "$tessera" bench machine
[[ -e $folder/text.txt ]] || for i in $(seq 4000); do echo "line $i of a text that nobody has to learn"; done >"$folder/text.txt"
python3 "$here/plan_grid.py" "$tessera" "$folder" "${3:-2}" "${4:-320}" "${5:-}"
