#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares predicted with measured times of steps over a grid of models and layouts on this machine.
#
# usage: bench/run_plan_grid.sh PROGRAM [OUT.csv] [MOST]     e.g. bench/run_plan_grid.sh build/release/bin/tessera grid.csv 300
#
# Measures the machine first if that was not done. Each row trains a few steps on random tokens (tessera bench step) and predicts
# the same plan (tessera plan --device here). At the end it prints the median and the 95th percentile of the errors, for all rows
# and after one common factor, which is fitted to the models of every second size, for the others.
set -euo pipefail
export OMP_WAIT_POLICY=passive
tessera=$(realpath "${1:?usage: bench/run_plan_grid.sh PROGRAM [OUT.csv] [MOST]}")
out=$(realpath -m "${2:-plan_grid.csv}")
most=${3:-300}
box=$(mktemp -d)
trap 'rm -rf -- "$box"' EXIT
cd "$box"
[[ -f ${TESSERA_CACHE:-$HOME/.cache/tessera}/machine.json ]] || "$tessera" bench machine

cores=$(nproc)
rows=0
echo "family,layers,hidden,length,ranks,zero,tensor,micro,accumulation,recompute,dtype,predicted_s,measured_s" >"$out"
for shape in "gpt2 2 128 128" "llama 2 192 128" "gpt2 4 256 128" "llama 3 384 256" "gpt2 3 512 256" "llama 2 640 256"; do
  read -r family layers hidden length <<<"$shape"
  for bf16 in false true; do
    for micro in 1 2 4; do
      for accumulation in 1 3; do
        for recompute in none full; do
          for layout in "1 0 1" "$cores 0 1" "$cores 1 1" "$cores 3 1" "$cores 0 $cores"; do
            read -r ranks zero tensor <<<"$layout"
            ((rows < most)) || break 6
            cat >config.json <<JSON
{
  "model": {"family": "$family", "num_layers": $layers, "hidden_size": $hidden, "num_heads": $((hidden / 64)), "vocab_size": 4096,
            "max_positions": $length},
  "tokenizer": {"type": "byte"}, "data": {"train": "none.txt", "sequence_length": $length},
  "train_micro_batch_size_per_gpu": $micro, "gradient_accumulation_steps": $accumulation,
  "bf16": {"enabled": $bf16}, "zero_optimization": {"stage": $zero}, "parallel": {"tensor": {"size": $tensor}},
  "activation_checkpointing": {"granularity": "$recompute"}, "trainer": {"max_steps": 100},
  "run": {"threads_per_rank": $((cores / ranks))}
}
JSON
            predicted=$("$tessera" plan config.json -n "$ranks" --device here --json 2>/dev/null |
              python3 -c 'import json, sys; print(json.load(sys.stdin)["step_s"])') || continue
            measured=$("$tessera" bench step config.json -n "$ranks" --steps 3 --json 2>/dev/null |
              python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["seconds"] / d["steps"])') || continue
            echo "$family,$layers,$hidden,$length,$ranks,$zero,$tensor,$micro,$accumulation,$recompute,$bf16,$predicted,$measured" >>"$out"
            rows=$((rows + 1))
          done
        done
      done
    done
  done
done

python3 - "$out" <<'PY'
import csv, math, sys

rows = list(csv.DictReader(open(sys.argv[1])))
sizes = sorted({(r["family"], r["hidden"]) for r in rows})
fitted = set(sizes[::2])


def errors(rows, factor=1.0):
    return sorted(abs(factor * float(r["predicted_s"]) / float(r["measured_s"]) - 1) for r in rows)


def show(name, found):
    if found:
        print(f"{name}: {len(found)} rows, median {100 * found[len(found) // 2]:.1f} %, "
              f"95th percentile {100 * found[int(0.95 * (len(found) - 1))]:.1f} %")


logs = sorted(math.log(float(r["measured_s"]) / float(r["predicted_s"])) for r in rows if (r["family"], r["hidden"]) in fitted)
factor = math.exp(logs[len(logs) // 2]) if logs else 1.0
show("as predicted", errors(rows))
print(f"common factor {factor:.3f}, from every second size")
show("the other sizes", errors([r for r in rows if (r["family"], r["hidden"]) not in fitted], factor))
PY
