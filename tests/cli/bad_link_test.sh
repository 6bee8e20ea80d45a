#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: hosts slow multiprocess
# timeout: 300
# Two hosts with a bad network between them: frames that come late or never change no bit, a slow link is reported, and so is a
# connection that was reset. The hosts are network namespaces, and a proxy forwards the frames.   usage: bad_link_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/ssh_stand_in.sh"
source "$(dirname "${BASH_SOURCE[0]}")/../support/namespaces.sh"
tessera=$(realpath "${1:?usage: bad_link_test.sh PROGRAM}")
namespaces_allowed || { echo "network namespaces may not be made here"; exit 77; }
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID
mkdir -p "$TESSERA_CACHE"

# configure STEPS: two hosts with a rank each, whose gradients are messages of 64 KiB and more.
configure() {
  cat >"$box/tiny.json" <<JSON
{
  "model": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "dropout": 0.1},
  "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 16},
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "gradient_reduction": "each",
  "trainer": {"max_steps": $1}, "run": {"threads_per_rank": 1}, "checkpoint": {"every": 0}
}
JSON
  printf '10.213.8.1 slots=1\n10.213.8.2 slots=1\n' >"$box/hosts"
  stand_in_for_ssh "$box/bin"
  printf 'ip netns exec %s' "$b" >"$box/bin/within-10.213.8.2"
  trap remove_namespaces EXIT
  two_namespaces_and_a_proxy bad_link_test 10.213.8 "$box" || exit 1
}
start() {
  setsid ip netns exec "$a" "$tessera" train "$box/tiny.json" --set "run.dir=$box/run" -H "$box/hosts" \
    >"$box/run.out" 2>"$box/run.err" &
  job=$!
}
reached() { [[ $(tail -1 "$box/run/metrics.jsonl" 2>/dev/null) =~ \"step\":([0-9]+) ]] && ((BASH_REMATCH[1] >= $1)); }
finishes() { wait "$job" || { cat "$box/run.err"; return 1; }; }
ended() { ! kill -0 "$job" 2>/dev/null; }
undisturbed() { "$tessera" train "$box/tiny.json" --set "run.dir=$box/one" >"$box/one.out" 2>"$box/one.err" || { cat "$box/one.err"; return 1; }; }
none_left() { ! pgrep -f "$box/tiny.json" >/dev/null && none_of_its_hosts "$box/bin"; }
proxy_says() { grep -qE "$1" "$box/link.out"; }

late_and_lost() {
  configure 12
  link delay 3
  link loss 0.02
  start
  expect "it trains" finishes
  link count
  expect "frames were lost" until_true proxy_says 'frames [0-9]+, lost [1-9]'
  expect "an undisturbed run finishes" undisturbed
  expect "the bits are the same" "$tessera" compare "$box/one" "$box/run"
  expect "no process is left" until_true none_left
}
claim "frames that come late or never change no bit" late_and_lost

slow() {
  configure 100000
  start
  expect "it begins" until_true reached 1
  sleep 5 # a period of the speed that it has
  link rate 10
  expect "the link is reported" until_true grep -qE \
    'slow link: what rank [01] of host [01] sends to rank [01] of host [01] arrives with .*/s, and before .*/s' "$box/run.err"
  link rate 0
  kill -TERM "$job"
  expect "the job ends" until_true ended
  expect "no process is left" until_true none_left
}
claim "a link that becomes slow is reported" slow

names_the_other_end() {
  grep -qE 'error: rank [01] failed at step [0-9]+: rank [01] of host [01] cannot be reached: gloo: ' "$box/run.err" ||
    { cat "$box/run.err"; return 1; }
}
reset() {
  configure 100000
  start
  expect "it begins" until_true reached 1
  link reset 1000
  expect "the job ends" until_true ended
  wait "$job"
  code=$?
  expect "the proxy has reset a connection" proxy_says '^reset 10\.213\.8\.[12]:'
  expect "the exit code is that of a lost rank, not $code" test "$code" = 6
  # What gloo adds depends on which end notices it first: a reset, a closed connection or a broken pipe.
  expect "the other end is named" names_the_other_end
  expect "no process is left" until_true none_left
}
claim "a connection that is reset is reported" reset

claims_done
