#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares gloo and UCX where two processes in two network namespaces of this machine exchange messages of 1 to 64 MiB in both
# directions at once, alternately.
#
# usage: bench/run_exchange.sh [ROUNDS]   EXCHANGE: the program (default build/release/bin/exchange_bench)
#
# Needs the right to make network namespaces (root), and a build that found UCX (apt-get install libucx-dev).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
rounds=${1:-3}
bench=${EXCHANGE:-build/release/bin/exchange_bench}
folder=$(mktemp -d)
a=tess-x-a-$$ b=tess-x-b-$$ card_a=xa$$ card_b=xb$$
cleanup() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf -- "$folder"
}
trap cleanup EXIT
ip netns add "$a" 2>/dev/null || { echo "run_exchange: network namespaces may not be made here; fix: run it as root" >&2; exit 8; }
ip netns add "$b"
ip link add "$card_a" netns "$a" type veth peer name "$card_b" netns "$b"
ip -n "$a" addr add 10.213.10.1/24 dev "$card_a"
ip -n "$b" addr add 10.213.10.2/24 dev "$card_b"
for ns in "$a" "$b"; do ip -n "$ns" link set lo up; done
ip -n "$a" link set "$card_a" up
ip -n "$b" link set "$card_b" up

# exchange ENGINE: both processes of one run.
exchange() {
  mkdir "$folder/run"
  UCX_TLS=tcp UCX_NET_DEVICES=$card_b timeout 120 ip netns exec "$b" "$bench" "$1" 1 "$folder/run" 10.213.10.2 &
  UCX_TLS=tcp UCX_NET_DEVICES=$card_a timeout 120 ip netns exec "$a" "$bench" "$1" 0 "$folder/run" 10.213.10.1 | tee -a "$folder/results"
  wait
  rm -r "$folder/run"
}
for ((round = 1; round <= rounds; ++round)); do
  exchange gloo
  exchange ucx
done
python3 - "$folder/results" <<'SUMMARY'
import json, statistics, sys
rates = {}
for row in map(json.loads, open(sys.argv[1])):
    rates.setdefault(row["mib"], {}).setdefault(row["engine"], []).append(row["gb_per_s"])
print("\n| MiB in each direction | gloo, GB/s | UCX, GB/s | UCX / gloo |\n|---|---|---|---|")
for mib, of in rates.items():
    gloo, ucx = statistics.median(of["gloo"]), statistics.median(of["ucx"])
    print(f"| {mib} | {gloo:.2f} | {ucx:.2f} | {ucx / gloo:.2f} |")
SUMMARY
