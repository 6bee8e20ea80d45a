#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the collectives of two builds of tessera between two hosts of two ranks each, alternately. The hosts are network
# namespaces of this machine, connected by a virtual cable. It shows from which size on sums should go from host to host: one
# build has another kLeastBytes in tessera/comm/transports/host_column.cpp, or another kPieceBytes in host_chain.cpp.
#
# usage: bench/run_host_chain.sh PROGRAM OTHER [ROUNDS [SIZES]]   SIZES: of vectors in MiB, comma-separated (default
#                                                                  0.0625,0.125,0.25,0.5,1,4,16; rounds: 3)
#        RATE: of the cable in each direction, as tc writes it (default 1gbit; none: no limit)
#
# Needs the right to make network namespaces (root).
set -euo pipefail
first=$(realpath "${1:?usage: run_host_chain.sh PROGRAM OTHER [ROUNDS [SIZES]]}")
second=$(realpath "${2:?usage: run_host_chain.sh PROGRAM OTHER [ROUNDS [SIZES]]}")
rounds=${3:-3}
sizes=${4:-0.0625,0.125,0.25,0.5,1,4,16}
rate=${RATE:-1gbit}
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
folder=$(mktemp -d)
source tests/support/namespaces.sh
cleanup() {
  remove_namespaces
  rm -rf -- "$folder"
}
trap cleanup EXIT
two_namespaces run_host_chain 10.213.11
if [[ $rate != none ]]; then
  tc -n "$a" qdisc add dev "$card_a" root tbf rate "$rate" burst 1mb latency 50ms
  tc -n "$b" qdisc add dev "$card_b" root tbf rate "$rate" burst 1mb latency 50ms
fi
(umask 077 && head -c 32 /dev/urandom >"$folder/secret")
export TESSERA_SECRET_FILE=$folder/secret WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.213.11.1

# measure NAME PROGRAM: all four ranks of one run.
measure() {
  local rank port=$((20000 + RANDOM % 10000))
  for rank in 3 2 1 0; do
    local ns=$a
    ((rank < 2)) || ns=$b
    RANK=$rank LOCAL_RANK=$((rank % 2)) MASTER_PORT=$port TORCHELASTIC_RUN_ID=host$((rank / 2)) \
      timeout 300 ip netns exec "$ns" "$2" bench comm --memory regions --sizes "$sizes" --seconds 60 --json \
      >"$folder/$rank.out" 2>"$folder/$rank.err" &
  done
  wait
  [[ -s $folder/0.out ]] || { cat "$folder"/*.err >&2; return 1; }
  sed "s/^/$1\t/" "$folder/0.out" >>"$folder/results"
}
for ((round = 1; round <= rounds; ++round)); do
  measure first "$first"
  measure second "$second"
done

python3 - "$folder/results" <<'SUMMARY'
import json, statistics, sys
times = {}
for line in open(sys.argv[1]):
    build, row = line.rstrip("\n").split("\t")
    row = json.loads(row)
    if "seconds" in row:
        times.setdefault((row["operation"], row["bytes"]), {}).setdefault(build, []).append(row["seconds"])
print("| operation | KiB | first, ms | second, ms | first / second |\n|---|---|---|---|---|")
for (operation, size), of in times.items():
    if len(of) == 2:
        one, two = (1e3 * statistics.median(of[build]) for build in ("first", "second"))
        print(f"| {operation} | {size // 1024} | {one:.2f} | {two:.2f} | {one / two:.2f} |")
SUMMARY
