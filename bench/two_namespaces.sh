# SPDX-License-Identifier: Apache-2.0
# Makes two network namespaces that a virtual cable connects, for benchmarks of two hosts. Scripts source this file.
# shellcheck shell=bash

a=tess-a-$$ b=tess-b-$$ card_a=ta$$ card_b=tb$$

# two_namespaces SCRIPT NET: makes the namespaces $a and $b, whose network cards $card_a and $card_b have the addresses NET.1 and
# NET.2. If that is not allowed, it says so for SCRIPT and exits with 8. The caller calls remove_namespaces when it ends.
two_namespaces() {
  ip netns add "$a" 2>/dev/null || { echo "$1: network namespaces may not be made here; fix: run it as root" >&2; exit 8; }
  ip netns add "$b"
  ip link add "$card_a" netns "$a" type veth peer name "$card_b" netns "$b"
  ip -n "$a" addr add "$2.1/24" dev "$card_a"
  ip -n "$b" addr add "$2.2/24" dev "$card_b"
  local ns
  for ns in "$a" "$b"; do ip -n "$ns" link set lo up; done
  ip -n "$a" link set "$card_a" up
  ip -n "$b" link set "$card_b" up
}

remove_namespaces() {
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
}
