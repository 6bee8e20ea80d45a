# SPDX-License-Identifier: Apache-2.0
# Makes two network namespaces, "hosts" that a virtual cable connects. Scripts of tests, benchmarks and campaigns source this file.
# shellcheck shell=bash

a=tess-a-$$ b=tess-b-$$ card_a=ta$$ card_b=tb$$
wire=tess-w-$$ link_proxy=

# namespaces_allowed: true if this user may make network namespaces here.
namespaces_allowed() { ip netns add "$wire" 2>/dev/null && ip netns del "$wire"; }

# two_namespaces SCRIPT NET: makes the namespaces $a and $b, whose network cards $card_a and $card_b have the addresses NET.1 and
# NET.2. If that is not allowed, it says so for SCRIPT and exits with 8. The caller calls remove_namespaces when it ends.
two_namespaces() {
  make_hosts "$1"
  ip link add "$card_a" netns "$a" type veth peer name "$card_b" netns "$b"
  give_addresses "$2"
}

# two_namespaces_and_a_proxy SCRIPT NET FOLDER [SEED]: the same, but the cable ends in a third namespace $wire, in which
# link_proxy.py forwards the frames. It reads its commands from the pipe FOLDER/link, as `link` writes them, and what it does
# is in FOLDER/link.out.
two_namespaces_and_a_proxy() {
  make_hosts "$1"
  ip netns add "$wire"
  ip link add "$card_a" netns "$a" type veth peer name wire_a netns "$wire"
  ip link add "$card_b" netns "$b" type veth peer name wire_b netns "$wire"
  ip -n "$wire" link set wire_a up
  ip -n "$wire" link set wire_b up
  give_addresses "$2"
  link_pipe=$3/link
  mkfifo "$link_pipe"
  ip netns exec "$wire" python3 "$(dirname "${BASH_SOURCE[0]}")/link_proxy.py" wire_a wire_b "$link_pipe" "${@:4}" >"$3/link.out" 2>&1 &
  link_proxy=$!
  local i
  for ((i = 0; i < 1000; ++i)); do
    if grep -qs ready "$3/link.out" || ! kill -0 "$link_proxy" 2>/dev/null; then break; fi
    sleep 0.01
  done
  grep -qs ready "$3/link.out" || { cat "$3/link.out" >&2; return 1; }
}

# link COMMAND...: a command for the proxy. It does not wait if the proxy has ended.
link() { echo "$*" 1<>"$link_pipe"; }

make_hosts() {
  ip netns add "$a" 2>/dev/null || { echo "$1: network namespaces may not be made here; fix: run it as root" >&2; exit 8; }
  ip netns add "$b"
}
give_addresses() {
  ip -n "$a" addr add "$1.1/24" dev "$card_a"
  ip -n "$b" addr add "$1.2/24" dev "$card_b"
  local ns
  for ns in "$a" "$b"; do ip -n "$ns" link set lo up; done
  ip -n "$a" link set "$card_a" up
  ip -n "$b" link set "$card_b" up
}

remove_namespaces() {
  [[ -z $link_proxy ]] || kill "$link_proxy" 2>/dev/null || true
  local ns
  for ns in "$a" "$b" "$wire"; do ip netns del "$ns" 2>/dev/null || true; done
}
