#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# Two "hosts" behind a real sshd of this machine, on loopback and, where namespaces may be made, with networks of their own: the
# bits are those of one host, and what ssh refuses is reported.   usage: ssh_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/namespaces.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/sshd.sh"
tessera=$(realpath "${1:?usage: ssh_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"
if ! find_sshd >/dev/null; then
  echo "skipped  there is no sshd here (apt-get install openssh-server)"
  exit 77
fi

train() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"; }
succeeds() { "$@" || { cat "$box"/*.err; return 1; }; }

configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "dropout": 0.1}, "gradient_reduction": "each",
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
  "trainer": {"max_steps": 6}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
JSON
  printf 'node-a slots=2\nnode-b slots=2\n' >"$box/hosts"
}

over_ssh() {
  configure
  trap 'stop_sshd "$box"' EXIT
  expect "sshd runs" start_sshd "$box" node-a node-b
  export TESSERA_TEST=$box  # passed on to the hosts
  local flags=(-H "$box/hosts" --master_addr 127.0.0.1 --launcher_args "-F $box/config")
  expect "two hosts train" succeeds train two "${flags[@]}"
  expect "four ranks of one host train" succeeds train four -n 4
  expect "the bits are the same" "$tessera" compare "$box/four" "$box/two"
  expect "the hosts are in the table" grep -qE '^node-b +2-3 ' "$box/two.out"

  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  setsid "$tessera" train "$box/tiny.json" --set "run.dir=$box/killed" "${flags[@]}" --set run.min_hosts=1 \
    --set checkpoint.peer_copies=1 --set checkpoint.peer_every=2 >"$box/killed.out" 2>"$box/killed.err" &
  job=$!
  expect "it begins" until_true test -s "$box/killed/metrics.jsonl"
  expect "there are two copy servers" test "$(num_copy_servers)" = 2
  kill -9 "$job"
  expect "nothing outlives the process that started the hosts, behind ssh as well" until_true nothing_writes
  expect "nor do the copies of the state" until_true no_copy_server

  : >"$box/authorized"
  train bad "${flags[@]}"
  code=$?
  expect "without a key the exit code is that of the environment, not $code" test "$code" = 8
  expect "the host and what to type are named" says "ssh cannot reach" "$box/bad.err"
}
num_copy_servers() {
  local pid count=0
  for pid in $(pgrep -x -f "$tessera copy-server"); do
    ! grep -qsF "TESSERA_TEST=$box" "/proc/$pid/environ" || count=$((count + 1))
  done
  echo "$count"
}
no_copy_server() { [[ $(num_copy_servers) == 0 ]]; }
# Agents have no argument that names the run, whose ranks write a line after every step.
nothing_writes() {
  local before
  before=$(stat -c %s "$box/killed/metrics.jsonl")
  sleep 0.3
  [[ $(stat -c %s "$box/killed/metrics.jsonl") == "$before" ]]
}
claim "two hosts behind a real sshd train with the bits of one" over_ssh

# In the end the cable to node-b is cut.
over_networks() {
  configure
  leave() { stop_sshd "$box"; remove_namespaces; }
  trap leave EXIT
  two_namespaces ssh_test 10.213.7
  expect "an sshd runs on each host" start_sshd_in_namespaces "$box" 10.213.7 node-a node-b
  expect "node-b is on a network of its own" test "$(ip netns exec "$a" ssh -F "$box/config" node-b ip -o -4 addr show "$card_b" | wc -l)" = 1
  local flags=(-H "$box/hosts" --master_addr 10.213.7.1 --launcher_args "-F $box/config")
  from_a() { ip netns exec "$a" "$tessera" train "$box/tiny.json" --set "run.dir=$box/$1" "${@:2}" >"$box/$1.out" 2>"$box/$1.err"; }
  expect "two hosts train" succeeds from_a two "${flags[@]}"
  expect "four ranks of one host train" succeeds train four -n 4
  expect "the bits are the same" "$tessera" compare "$box/four" "$box/two"

  sed -i 's/"max_steps": 6/"max_steps": 100000/' "$box/tiny.json"
  from_a cut "${flags[@]}" &
  job=$!
  expect "it begins" until_true test -s "$box/cut/metrics.jsonl"
  ip -n "$b" link set "$card_b" down
  wait "$job"
  code=$?
  expect "the exit code of a lost host is 6, not $code" test "$code" = 6
  expect "the host is named" says "node-b" "$box/cut.err"
}
if [[ $EUID == 0 ]] && namespaces_allowed; then
  claim "so do two hosts with networks of their own, of which a lost one is named" over_networks
else
  echo "skipped  network namespaces may not be made here"
fi

claims_done
