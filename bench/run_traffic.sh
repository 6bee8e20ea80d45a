#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counts the calls and bytes of collectives and messages that a rank makes in a step, for every kind of parallelism, and compares
# them with the formulas of bench/traffic_forms.py.   usage: bench/run_traffic.sh
#
# The model is a GPT-2 of 4 layers of 128 channels. Counts do not depend on speed, so up to 8 ranks can share few cores.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source bench/by_turns.sh
ours step_bench

# spread NAME RANKS OPTION...: a step of 4 micro-batches of 4 samples; with --batch 32, of two data-parallel replicas.
spread() {
  local name=$1 ranks=$2
  shift 2
  case_of "$name" "$bench" --preset nano --vocab 512 --length 128 --batch 16 --micros 4 --dtype fp32 --stage 0 \
    --threads 1 --steps 2 --warmup 2 --ranks "$ranks" --set model.tie_embeddings=false "$@"
}
tensor() { # NAME MODE SIZE OPTION...
  local name=$1 mode=$2 size=$3
  shift 3
  spread "$name" "$size" --tensor "$size" --set parallel.tensor.mode="$mode" "$@"
}
context() { spread "$1" "$3" --set parallel.context.mode="$2" --set parallel.context.size="$3"; } # NAME MODE SIZE
two_parts=(--pipeline 2 --set parallel.pipeline.partition='[0,3,6]')
four_parts=(--pipeline 2 --set parallel.pipeline.chunks=2 --set parallel.pipeline.partition='[0,2,3,4,6]')

for stage in 0 1 2 3; do
  spread "data 2, ZeRO $stage" 2 --batch 32 --stage "$stage" --set zero_optimization.stage3_param_persistence_threshold=0
done
# The hosts are simulated and have two ranks each.
for ranks in 4 8; do
  for stage in 1 3; do
    spread "data $ranks, ZeRO $stage, hosts $((ranks / 2))" "$ranks" --batch $((16 * ranks)) --stage "$stage" --hosts $((ranks / 2)) \
      --set gradient_reduction=once --set zero_optimization.stage3_param_persistence_threshold=0
  done
done
tensor "tensor 1d 2" 1d 2
tensor "tensor 1d 4" 1d 4
tensor "tensor 1d 2, sequence" 1d 2 --set parallel.sequence=true
tensor "tensor 1d 4, sequence" 1d 4 --set parallel.sequence=true
tensor "tensor 2d 4" 2d 4
tensor "tensor 2.5d 8" 2.5d 8 --set parallel.tensor.depth=2
tensor "tensor 3d 8" 3d 8
for ranks in 2 4; do
  context "context ring $ranks" ring "$ranks"
  context "context ulysses $ranks" ulysses "$ranks"
done
for schedule in gpipe 1f1b zb-h1; do
  spread "pipeline 2, $schedule" 2 "${two_parts[@]}" --schedule "$schedule"
done
for schedule in interleaved zb-v; do
  spread "pipeline 2, $schedule" 2 "${four_parts[@]}" --schedule "$schedule"
done
spread "pipeline 2 x tensor 2" 4 "${two_parts[@]}" --tensor 2
spread "pipeline 2 x tensor 2, shares" 4 "${two_parts[@]}" --tensor 2 --set parallel.pipeline.scatter_gather=true

python3 bench/traffic_forms.py "$results"
