#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program of tests with one kernel variant.   usage: with_kernel_variant.sh VARIANT TESSERA PROGRAM [ARGUMENTS...]
# Exits with 77 if this CPU does not support the variant, or if it is the default, with which all other ctest entries run.
set -uo pipefail
variant=${1:?usage: with_kernel_variant.sh VARIANT TESSERA PROGRAM} tessera=${2:?which tessera?}
shift 2

# Prints the variant that `tessera report` names with TESSERA_ISA=$1; empty: the default.
used() { TESSERA_ISA=$1 "$tessera" report --json 2>&1 | sed -nE 's/^ *"kernels": "([a-z0-9_]+)".*/\1/p'; }

chosen=$(used "")
[[ -n $chosen ]] || { echo "tessera report names no kernels" >&2; exit 1; }
if [[ $chosen == "$variant" ]]; then
  echo "$variant is what is used anyway"
  exit 77
fi
if [[ $(used "$variant") != "$variant" ]]; then
  why=$(TESSERA_ISA=$variant "$tessera" report 2>&1 >/dev/null)
  [[ $why == *"this CPU does not have it"* ]] || { printf 'TESSERA_ISA=%s is not used: %s\n' "$variant" "$why" >&2; exit 1; }
  echo "this CPU does not have $variant"
  exit 77
fi
TESSERA_ISA=$variant exec "$@"
