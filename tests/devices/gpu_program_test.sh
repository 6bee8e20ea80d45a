#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# The program on simulated GPUs, by the way of real ones: it asks the driver's library, loads libtorch_cuda.so and the plugin
# libtessera_cuda.so in each rank, and generates there. Each thing that can be wrong with a host has its sentence
# before anything starts.   usage: gpu_program_test.sh PROGRAM FOLDER OF THE SIMULATED LIBRARIES
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=$1 fake=$2
for library in libtorch_cuda.so libtessera_cuda.so libnvml.so; do
  [[ -e $fake/$library ]] || { echo "the simulated library $library is not built"; exit 77; }
done
export TESSERA_NVML=$fake/libnvml.so TESSERA_CUDA=$fake TESSERA_CUDA_PLUGIN=$fake/libtessera_cuda.so OMP_WAIT_POLICY=passive
unset CUDA_VISIBLE_DEVICES DS_ACCELERATOR SIMULATED_NVML SIMULATED_GPU_FAILS

write_config() {
  head -c 20000 examples/data/shakespeare.txt >"$box/text.txt"
  cat >"$box/run.json" <<JSON
{"model": {"preset": "nano", "num_layers": 2, "hidden_size": 32}, "data": {"train": "$box/text.txt", "sequence_length": 32, "validation_fraction": 0.1},
 "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1, "trainer": {"max_steps": 4}, "run": {"threads_per_rank": 1}}
JSON
}
train() { "$program" train "$box/run.json" --set run.dir="$box/$1" "${@:2}" >"$box/$1.out" 2>&1; }
generates_there() {
  write_config
  train run --device cpu || { cat "$box/run.out"; exit 1; }
  local prompt=(--prompt "the" --max-new-tokens 8 --temperature 0)
  "$program" generate "$box/run" "${prompt[@]}" >"$box/cpu.txt" || exit 1
  "$program" generate "$box/run" "${prompt[@]}" --device cuda >"$box/gpu.txt" || exit 1
  expect "the same text" diff "$box/cpu.txt" "$box/gpu.txt"
  "$program" eval "$box/run" --device cuda >"$box/eval.txt" || exit 1
}

# refused SENTENCE REMEDY [VARIABLE=VALUE...] -- FLAGS: the training is refused, also by --dry-run, before it makes its folder.
refused() {
  write_config
  local sentence=$1 remedy=$2 code variables=()
  shift 2
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  for dry in "" --dry-run; do
    env "${variables[@]}" "$program" train "$box/run.json" --set run.dir="$box/refused" "${@:2}" $dry >"$box/out" 2>&1
    code=$?
    expect "exit code 8, not $code" test "$code" = 8
    expect "$sentence" says "$sentence" "$box/out"
    expect "$remedy" says "$remedy" "$box/out"
    expect "nothing was started" test ! -e "$box/refused"
  done
}
reports() {
  "$program" report >"$box/out" 2>&1 || exit 1
  expect "the GPUs" says "cuda:1 Simulated GPU with 8.0 GiB" "$box/out"
  expect "the libraries" says "plugin $fake/libtessera_cuda.so" "$box/out"
}
fits() {  # a plan that is larger than the GPU has exit code 5
  write_config
  SIMULATED_NVML="gib=2" "$program" train "$box/run.json" --device cuda --dry-run --set model.hidden_size=1024 \
    --set model.num_layers=24 >"$box/out" 2>&1
  expect "exit code 5" test $? = 5
}

fits_on_host() {  # what the host keeps is compared with its own memory
  write_config
  SIMULATED_NVML="gib=8000" "$program" train "$box/run.json" --device cuda --dry-run --bf16 --set model.hidden_size=16384 \
    --set model.num_layers=64 --set 'zero_optimization={"stage": 1, "offload_optimizer": {"device": "cpu"}}' >"$box/out" 2>&1
  expect "exit code 5" test $? = 5
  expect "the host's memory" says "in the host's memory, " "$box/out"
  expect "what is there" says "(masters and states " "$box/out"
}
claim "generation and evaluation do" generates_there
claim "a report names GPUs and libraries" reports
claim "a plan that does not fit on the GPU is refused" fits
claim "a plan that does not fit into the host's memory is refused" fits_on_host
claim "a missing driver has its sentence" refused "no driver of NVIDIA is installed" "--device" \
  TESSERA_NVML=/nowhere/libnvidia-ml.so -- --device cuda
claim "a driver that does not answer" refused "does not answer: Driver Not Loaded" "--device" SIMULATED_NVML="init=9" -- --device cuda
claim "an old driver" refused "the driver 550.1 supports CUDA 12.4" "install the driver 580" \
  SIMULATED_NVML="driver=550.1 cuda=12040" -- --device cuda
claim "an old GPU" refused "compute capability 7.0" "leave it out of" SIMULATED_NVML="major=7" -- --device cuda
claim "more ranks than GPUs" refused "4 ranks on this host, but 2 devices" "start at most 2 ranks" -- --device cuda -n 4
claim "a GPU that the host does not have" refused "this host has no device cuda:5" "choose from 0 to 1" -- --device cuda:5
claim "hidden GPUs" refused 'CUDA_VISIBLE_DEVICES="" hides all of its 2 GPUs' "--device" CUDA_VISIBLE_DEVICES= -- --device cuda
claim "a libtorch for CPUs" refused "this libtorch is for CPUs" "tools/setup.sh --cuda" TESSERA_CUDA=/nowhere -- --device cuda
claim "a missing plugin" refused "is missing: build it where nvcc is" "tools/build.sh release tessera_cuda" \
  TESSERA_CUDA_PLUGIN=/nowhere/libtessera_cuda.so -- --device cuda
claim "a library that is not a plugin" refused "it is not a plugin of tessera" "tools/build.sh release tessera_cuda" \
  TESSERA_CUDA_PLUGIN="$fake/libnvml.so" -- --device cuda
claim "a GPU without free memory" refused "cuda:0 (Simulated GPU) has no free memory: 7.0 GiB" "end the processes that use it" \
  SIMULATED_NVML="used=7" SIMULATED_GPU_FAILS="out of memory" -- --device cuda
claim "a GPU that another process uses alone" refused "another process uses it alone" "compute-mode" \
  SIMULATED_GPU_FAILS="all CUDA-capable devices are busy or unavailable" -- --device cuda
claim "a GPU without kernels" refused "an architecture for which the CUDA libraries have no kernels" "8.0 or newer" \
  SIMULATED_GPU_FAILS="no kernel image is available for execution on the device" -- --device cuda
claims_done
