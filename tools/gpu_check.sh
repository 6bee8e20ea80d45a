#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves and measures on a host with a GPU what no test can without one.
#
#   tools/gpu_check.sh prove [--rehearse] [BUILD]      at most 5 minutes
#   tools/gpu_check.sh measure [--rehearse] [BUILD]    at most 7 minutes
#   tools/gpu_check.sh [--rehearse [--short]] [BUILD]  both
#
# BUILD is the build folder, build/release by default. Every step has a limit in seconds and prints its result at once; what does not
# fit into the time of its part is not started, and counts as failed. The table is last. The exit code is 1 if a step failed.
# --rehearse runs the same steps on simulated GPUs, with smaller models and without that limit, so that the script
# itself is tried where there is no GPU; its figures mean nothing. --short leaves out the tests of devices_test, which ./check runs,
# and repeated trainings.
#
# On the host: the CUDA libraries of torch 2.11 (tools/setup.sh --cuda, or TESSERA_CUDA), and the plugin BUILD/lib/libtessera_cuda.so.
# A Python with torch and CUDA, in PYTHON (python3), is the peer of the measurements; without one they have no peer.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
parts="" rehearse=false short=false build=""
for word in "$@"; do
  case $word in
    prove | measure) parts+=" $word" ;;
    --rehearse) rehearse=true ;;
    --short) short=true ;;
    -*) printf 'gpu_check: unknown option %s\n  fix: tools/gpu_check.sh [prove | measure] [--rehearse [--short]] [BUILD]\n' "$word" >&2; exit 2 ;;
    *) build=$word ;;
  esac
done
parts=${parts:-prove measure}
build=${build:-build/release}
[[ -d $build ]] || { printf 'gpu_check: there is no folder %s\n  fix: tools/build.sh cuda, and tools/gpu_check.sh build/cuda\n' "$build" >&2; exit 8; }
build=$(cd "$build" && pwd)
out=${OUT:-$(mktemp -d)}
table=()
failed=0
device=cuda
export OMP_WAIT_POLICY=passive
if $rehearse; then
  fake=$build/tests/fake_cuda
  export TESSERA_NVML=$fake/libnvml.so TESSERA_CUDA=$fake TESSERA_CUDA_PLUGIN=$fake/libtessera_cuda.so
  unset CUDA_VISIBLE_DEVICES
else
  export TESSERA_TEST_GPU=cuda TESSERA_CUDA_PLUGIN=$build/lib/libtessera_cuda.so
fi

# step NAME LIMIT COMMAND...: runs the command and keeps its outcome and seconds for the table. After the end of the part's time
# nothing is started.
step() {
  local name=$1 limit=$2 begin=$SECONDS rc left=$((deadline - SECONDS))
  shift 2
  echo "== $name"
  if ((left <= 0)); then
    failed=1
    table+=("$(printf '%-58s %4d s  %s' "$name" 0 "not started: no time is left")")
    return
  fi
  ((limit <= left)) || limit=$left
  timeout "$limit" bash -c '"$@"' step "$@" 2>&1 | tail -n 40
  rc=${PIPESTATUS[0]}
  ((rc == 0)) || failed=1
  table+=("$(printf '%-58s %4d s  %s' "$name" $((SECONDS - begin)) "$( ((rc == 0)) && echo ok || echo "FAILED ($rc)")")")
}

# Emulated kernels take a model of 37,000 parameters.
shrink=()
! $rehearse || shrink=(--set model.hidden_size=32 --set model.num_layers=2 --set data.sequence_length=32)
export device build out rehearse shrink_text="${shrink[*]}"
tests() { "$build/bin/devices_test" --gtest_brief=1 "$@"; }
reports() {  # the report names a GPU
  "$build/bin/tessera" report | tee "$out/report.txt"
  grep -q 'cuda:0' "$out/report.txt"
}
train() {  # train RUN FLAGS...
  # shellcheck disable=SC2086  # words without spaces
  ${start:-} "$build/bin/tessera" train --model nano --data examples/data/shakespeare.txt --set scheduler.params.warmup_num_steps=1 \
    --set run.dir="$out/$1" $shrink_text "${@:2}"
}
losses() { grep -o '"loss": *[0-9.e-]*' "$out/$1/metrics.jsonl" | head -n 20; }
# near A B: the last losses of two runs differ by less than 0.2 percent.
near() {
  awk -v a="$(losses "$1" | tail -n 1 | grep -o '[0-9.e-]*$')" -v b="$(losses "$2" | tail -n 1 | grep -o '[0-9.e-]*$')" \
    'BEGIN { d = a > b ? a - b : b - a; print a, b; exit !(a > 0 && d < 0.002 * b) }'
}
# equal A B: the first 20 losses of two runs are the same.
equal() { diff <(losses "$1") <(losses "$2") && [[ -n $(losses "$1") ]]; }
# killed RUN FLAGS...: a training that is killed after its first checkpoint.
killed() {
  (start=exec && train "$@") >"$out/killed.log" 2>&1 &  # so that its number is that of the program
  local pid=$! i
  for ((i = 0; i < 600; ++i)); do
    kill -0 "$pid" 2>/dev/null || { cat "$out/killed.log"; return 1; }
    compgen -G "$out/$1/checkpoints/*" >/dev/null && break
    sleep 0.1
  done
  kill -9 "$pid"
  wait "$pid" 2>/dev/null
  compgen -G "$out/$1/checkpoints/*" >/dev/null
}
# resumes RUN FLAGS...: two more steps than its newest checkpoint has.
resumes() {
  local newest
  newest=$(basename "$(compgen -G "$out/$1/checkpoints/step-*" | sort | tail -n 1)")
  train "$@" --set trainer.max_steps=$((10#${newest#step-} + 2))
}
sanitized() { compute-sanitizer --tool "$1" --error-exitcode 3 "$build/bin/devices_test" --gtest_filter='DeviceKernels.*' --gtest_brief=1; }
export -f tests reports train losses near equal killed resumes sanitized

prove() {
  local steps=20 every
  $rehearse && steps=4
  every=$((steps / 2))
  $rehearse || step "the driver" 10 nvidia-smi
  step "the program, its GPUs and libraries" 30 reports
  $short || step "kernels against those of the CPU" 60 tests --gtest_filter='DeviceKernels.*'
  if ! $rehearse && command -v compute-sanitizer >/dev/null; then
    step "memory of the kernels (memcheck)" 60 sanitized memcheck
    step "shared memory of the kernels (racecheck)" 60 sanitized racecheck
  fi
  if ! $short; then
    step "every family, feature and layout" 240 tests --gtest_filter='*Families*:*GpuTraining*'
    step "generation and reinforcement learning" 60 tests --gtest_filter='*GpuModels*:*GpuPolicies*'
  fi
  step "a training on the CPU" 60 train cpu --device cpu --set trainer.max_steps=$steps
  step "the same on the GPU" 60 train gpu --device "$device" --set trainer.max_steps=$steps
  step "their losses agree" 5 near gpu cpu
  step "the same on the GPU once more" 60 train gpu2 --device "$device" --set trainer.max_steps=$steps
  step "its losses have the same bits" 5 equal gpu gpu2
  step "a training that is killed" 60 killed half --device "$device" --set trainer.max_steps=1000 --set checkpoint.every=$every
  step "goes on from its checkpoint" 60 resumes half --device "$device"
  if $short; then return; fi
  step "from the checkpoint of the GPU on the CPU" 60 train gpu --device cpu --set trainer.max_steps=$((steps + 2))
  step "from that of the CPU on the GPU" 60 train gpu --device "$device" --set trainer.max_steps=$((steps + 4))
  step "bf16 in the same bits twice" 60 train b1 --bf16 --device "$device" --set trainer.max_steps=$steps
  step "(the second time)" 60 train b2 --bf16 --device "$device" --set trainer.max_steps=$steps
  step "their losses have the same bits" 5 equal b1 b2
}

# speed NAME LIMIT MICRO FLAGS...: tokens per second of the last steps of a training in bf16, for the table.
speed() {
  local name=$1 limit=$2 run
  run=speed-${name//[^a-zA-Z0-9]/-}
  step "$name" "$limit" timed "$run" "${@:3}"
  local figure
  figure=$(grep -o '"tokens_per_s": *[0-9.e+]*' "$out/$run/metrics.jsonl" 2>/dev/null | grep -o '[0-9.e+]*$' | tail -n 5 | sort -g | sed -n 3p)
  table+=("$(printf '    %s tokens/s%s' "${figure:-no}" "$(grep -oE '\(MFU[^)]*\)' "$out/$run.log" 2>/dev/null | tail -n 1 | sed 's/^/ /')")")
}
timed() {  # timed RUN MICRO FLAGS...
  "$build/bin/tessera" train --data examples/data/shakespeare.txt --device "$device" --bf16 --set run.dir="$out/$1" \
    --set trainer.max_steps="$steps" --set train_micro_batch_size_per_gpu="$2" --set train_batch_size="$2" --set steps_per_print=1 \
    "${@:3}" 2>&1 | tee "$out/$1.log"
  return "${PIPESTATUS[0]}"
}
export -f timed
measure() {
  local small=(--model gpt2-small --set data.sequence_length=1024) micro
  export steps=15
  if $rehearse; then
    export steps=6
    small=(--model nano "${shrink[@]}")
    speed "nano" 120 2 "${small[@]}"
    if $short; then return; fi
    speed "nano, the fastest attention" 120 2 "${small[@]}" --set run.attention_kernel=fastest
    speed "nano, recomputed" 120 2 "${small[@]}" --set activation_checkpointing.granularity=full
    return
  fi
  for micro in 16 32 64; do
    speed "GPT-2 124M, T 1024, B $micro" 60 $micro "${small[@]}"
  done
  speed "GPT-2 124M, T 1024, B 32, the fastest attention" 60 32 "${small[@]}" --set run.attention_kernel=fastest
  speed "GPT-2 1558M, T 1024, B 8" 80 8 --model gpt2-xl --set data.sequence_length=1024
  if "${PYTHON:-python3}" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    step "the peer: torch.compile, GPT-2 124M, T 1024, B 32" 150 "${PYTHON:-python3}" bench/peers/gpt2_cuda.py --batch 32
  fi
}

for part in $parts; do
  if $rehearse; then
    deadline=$((SECONDS + 3600))
  elif [[ $part == prove ]]; then
    deadline=$((SECONDS + 300))
  else
    deadline=$((SECONDS + 420))
  fi
  "$part"
done
printf '\n'
printf '%s\n' "${table[@]}"
exit "$failed"
