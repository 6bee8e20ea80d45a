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
source tests/support/namespaces.sh
cleanup() {
  remove_namespaces
  rm -rf -- "$folder"
}
trap cleanup EXIT
two_namespaces run_exchange 10.213.10

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
