#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark once, one after the other. The output is also written to a file, with the machine, the commit and each
# command as headings.
#
# usage: bench/run_all.sh [FILE]        FILE: default build/bench.txt
#        PEERS: a Python that has torch 2.11, deepspeed, safetensors, tokenizers and tiktoken (default ~/peers/bin/python)
#
# Takes about an hour; nothing else should run meanwhile. On a CPU without AVX-512, PyTorch's bf16 matrix products take minutes
# each, so the benchmarks that need them are skipped with a notice. Exits with 1 if a benchmark failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
file=${1:-build/bench.txt}
exec > >(tee "$file") 2>&1
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs, $(date -u +%F), $(git describe --always --dirty)"

failed=()
run() {
  printf '\n## %s\n' "$*"
  "$@" || failed+=("$*")
}
run bench/run_startup.sh
run bench/run_torch_module.sh
run bench/run_startup_hosts.sh
run bench/run_loss_hosts.sh
run bench/run_tokenizer.sh
run bench/run_adamw.sh
run bench/run_comm.sh
run bench/run_checkpoint.sh 1
run bench/run_traffic.sh
run bench/run_monitors.sh
run bench/run_save.sh
run bench/run_layouts.sh
if grep -qw avx512bw /proc/cpuinfo; then
  run bench/run_compiled.sh
  run bench/run_step.sh 1
  run bench/run_zero.sh
  run bench/run_generate.sh 1
else
  printf '\nleft out, for want of AVX-512: run_step.sh, run_zero.sh, run_compiled.sh in bf16, run_generate.sh with several texts\n'
  run bench/run_compiled.sh 1 fp32
  run bench/run_generate.sh 1 1
fi
((${#failed[@]} == 0)) || { printf '\nfailed: %s\n' "${failed[@]}"; exit 1; }
