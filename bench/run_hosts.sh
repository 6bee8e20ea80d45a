#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the 124M GPT-2 step (B=4, T=512, bf16) on two hosts with a rank and a thread each, tessera and DDP over gloo
# alternately. The hosts are network namespaces of this machine, connected by a virtual cable.
#
# usage: bench/run_hosts.sh [RATE [ROUNDS]]   RATE: of the cable in each direction, as tc writes it, such as 1gbit (default: no
#                                              limit). PEERS: a Python that has torch 2.11 and numpy (default ~/peers/bin/python)
#        LENGTH, STEPS: tokens of a sample and steps of tessera (default 512 and 8, at least 4); smaller ones only try the script
#
# Needs the right to make network namespaces (root). Without a limit DDP sends fp32; with one it sends bf16 (its
# bf16_compress_hook), and tessera sends bf16 and 8-bit gradients with ZeRO stage 1.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rate=${1:-}
rounds=${2:-1}
length=${LENGTH:-512}
steps=${STEPS:-8}
source bench/by_turns.sh
ours tessera
theirs torch numpy
bench=$(realpath "$bench")
folder=$(mktemp -d)
source tests/support/namespaces.sh
cleanup() {
  remove_namespaces
  rm -rf -- "$folder" "$results"
}
trap cleanup EXIT
two_namespaces run_hosts 10.213.9
if [[ -n $rate ]]; then
  tc -n "$a" qdisc add dev "$card_a" root tbf rate "$rate" burst 1mb latency 50ms
  tc -n "$b" qdisc add dev "$card_b" root tbf rate "$rate" burst 1mb latency 50ms
fi
mkdir "$folder/bin"
printf '#!/bin/bash\nexec ip netns exec %s sh -c "${!#}"\n' "$b" >"$folder/bin/ssh"
chmod +x "$folder/bin/ssh"
printf '10.213.9.1 slots=1\n10.213.9.2 slots=1\n' >"$folder/hosts"
cat >"$folder/gpt2.json" <<CONFIG
{
  "model": {"preset": "gpt2-small"}, "tokenizer": {"type": "gpt2"},
  "data": {"train": "$PWD/examples/data/shakespeare.txt", "sequence_length": $length},
  "train_batch_size": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
  "optimizer": {"params": {"lr": 1e-4}}, "trainer": {"max_steps": $steps}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
CONFIG

# host_step TYPE: trains with gradients of that type, and prints the median step behind the first two as JSON.
host_step() {
  rm -rf "$folder/run"
  PATH=$folder/bin:$PATH ip netns exec "$a" "$bench" train "$folder/gpt2.json" -H "$folder/hosts" --set "run.dir=$folder/run" \
    --set "communication_data_type=$1" --quiet >&2
  python3 - "$folder/run/metrics.jsonl" <<'MEDIAN'
import json, statistics, sys
times = [row["step_ms"] for row in map(json.loads, open(sys.argv[1])) if "step_ms" in row]
print(json.dumps({"step_ms": round(statistics.median(times[2:]), 1)}))
MEDIAN
}
# ddp_step HOOK: the same of DDP.
ddp_step() {
  local port=$((20000 + RANDOM % 10000)) rank
  local command=("$peers" bench/peers/pytorch_gpt2_train.py --dtype autocast --procs 2 --threads 1 -B 4 -T "$length" --attn sdpa
    --optim adamw_fused --steps $((steps - 3)) --hook "$1")
  for rank in 1 0; do
    local ns=$a card=$card_a
    ((rank == 0)) || { ns=$b card=$card_b; }
    ip netns exec "$ns" env OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME="$card" PEER_RANK=$rank MASTER_ADDR=10.213.9.1 MASTER_PORT=$port \
      $allocator "${command[@]}" >"$folder/ddp.$rank" 2>"$folder/ddp.$rank.err" &
  done
  wait
  python3 -c 'import json, statistics, sys; print(json.dumps({"step_ms": statistics.median(json.load(sys.stdin)["step_ms"])}))' \
    <"$folder/ddp.0" || cat "$folder"/ddp.*.err >&2
}
export -f host_step ddp_step
allocator=${tuned[*]:1}
export length steps bench folder a b card_a card_b peers allocator

types=(fp32)
hook=none
if [[ -n $rate ]]; then
  types=(bf16 int8)
  hook=bf16
fi
for ((round = 1; round <= rounds; ++round)); do
  for type in "${types[@]}"; do case_of "ours $type" bash -c "host_step $type"; done
  case_of "DDP" bash -c "ddp_step $hook"
done

python3 - "$results" <<'SUMMARY'
import json, statistics, sys
times = {}
for row in open(sys.argv[1]):
    name, line = row.rstrip("\n").split("\t")
    times.setdefault(name, []).append(json.loads(line)["step_ms"])
median = {name: statistics.median(values) for name, values in times.items()}
print("\n| gradients | ours, ms a step | DDP | ratio |\n|---|---|---|---|")
for name in median:
    if name.startswith("ours "):
        print(f"| {name.removeprefix('ours ')} | {median[name]:.0f} | {median['DDP']:.0f} | {median['DDP'] / median[name]:.2f} |")
SUMMARY
