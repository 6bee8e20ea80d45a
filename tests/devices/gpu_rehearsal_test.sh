#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 900
# Trainings by the program on simulated GPUs.   usage: gpu_rehearsal_test.sh PROGRAM FOLDER OF THE SIMULATED LIBRARIES
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=$1 fake=$2
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
losses() { grep -o '"loss": *[0-9.e-]*' "$box/$1/metrics.jsonl"; }
# close_to A B: all losses of two runs agree within 0.2 percent.
close_to() {
  paste <(losses "$1" | grep -o '[0-9.e-]*$') <(losses "$2" | grep -o '[0-9.e-]*$') |
    awk '{ d = $1 > $2 ? $1 - $2 : $2 - $1; if (NF != 2 || d > 0.002 * $2) bad = 1 } END { exit bad || NR < 4 }'
}

trains_there() {
  write_config
  train cpu --device cpu || { cat "$box/cpu.out"; exit 1; }
  train one --device cuda || { cat "$box/one.out"; exit 1; }
  expect "a training on a GPU is near that of the CPU" close_to one cpu
  expect "every line of a step shows the share of the peak" grep -qE 'MFU [0-9]+%, [0-9]+% of the speed of light' "$box/one.out"
  train again --device cuda:1 || { cat "$box/again.out"; exit 1; }
  expect "another GPU gives the same bits" diff <(losses one) <(losses again)
  train two --device cuda -n 2 --set zero_optimization.stage=2 || { cat "$box/two.out"; exit 1; }
  expect "two GPUs give the same bits" diff <(losses one) <(losses two)
}
trains_in_bf16() {
  write_config
  train b1 --device cuda --bf16 || { cat "$box/b1.out"; exit 1; }
  train b2 --device cuda --bf16 -n 2 --set zero_optimization.stage=3 || { cat "$box/b2.out"; exit 1; }
  expect "two GPUs give the same bits in bf16" diff <(losses b1) <(losses b2)
  train fast --device cuda --bf16 --set run.attention_kernel=fastest || { cat "$box/fast.out"; exit 1; }
  expect "the fastest attention is near" close_to fast b1
}
keeps_what_rests_on_the_host() {
  write_config
  local zero='zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0' again='activation_checkpointing={"granularity": "full"'
  train plain --device cuda --set "$zero}" --set "$again}" || { cat "$box/plain.out"; exit 1; }
  train host --device cuda -n 2 --set "$zero, \"offload_param\": {\"device\": \"cpu\"}, \"offload_optimizer\": {\"device\": \"cpu\"}}" \
    --set "$again, \"cpu_checkpointing\": true}" || { cat "$box/host.out"; exit 1; }
  expect "the host's memory changes no bit" diff <(losses plain) <(losses host)
  for what in "masters and states" weights activations; do
    expect "a line for $what" says "$what in the host's memory:" "$box/host.out"
  done
  local disk="\"device\": \"nvme\", \"nvme_path\": \"$box\""
  train disk --device cuda --set "$zero, \"offload_param\": {$disk}, \"offload_optimizer\": {$disk}}" \
    --set "$again, \"offload\": {$disk}}" || { cat "$box/disk.out"; exit 1; }
  expect "a disk changes no bit" diff <(losses plain) <(losses disk)
}
counted() { grep -qE "\"$1\": *[1-9]" "$box/$2/metrics.jsonl"; }
updates_early() {  # updates_early CLIPPING COUNT OTHER COUNT: with this clipping the first is counted, and the other is not
  write_config
  local host='zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"' clip=("--set" "gradient_clipping=$1")
  train plain --device cuda -n 2 --bf16 "${clip[@]}" --set "$host}}" || { cat "$box/plain.out"; exit 1; }
  train early --device cuda -n 2 --bf16 "${clip[@]}" --set "$host, \"super_offload\": true}}" || { cat "$box/early.out"; exit 1; }
  expect "early updates change no bit" diff <(losses plain) <(losses early)
  expect "$2 is counted" counted "$2" early
  expect "$3 is not" test "$(counted "$3" early && echo yes)" = ""
  expect "nothing is counted without the key" test "$(grep -c early_ "$box/plain/metrics.jsonl")" = 0
}
claim "a training runs on simulated GPUs" trains_there
claim "the host can update during the backward pass" updates_early 1e6 early_updates early_repeats
claim "it updates again where steps clip" updates_early 1e-4 early_repeats early_updates
claim "weights, masters and activations can be on the host" keeps_what_rests_on_the_host
claim "a training in bf16 does, with the libraries' attention" trains_in_bf16
claims_done
