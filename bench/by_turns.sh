# SPDX-License-Identifier: Apache-2.0
# Functions for the benchmarks that alternate between tessera and a reference program; these scripts source this file.

# The allocator settings that suit PyTorch best.
tuned=(env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456)
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# ours PROGRAM: sets $bench to a benchmark program of tessera; exits if it is missing.
ours() {
  bench=build/release/bin/$1
  [[ -x $bench ]] || { echo "$(basename "$0" .sh): $bench is not built; fix: tools/build.sh release $1" >&2; exit 8; }
}

# theirs PACKAGE...: sets $peers to a Python with these packages; exits if one is missing.
theirs() {
  local fix
  peers=${PEERS:-$HOME/peers/bin/python}
  fix="python3 -m venv ~/peers && ~/peers/bin/pip install $*"
  [[ -x $peers ]] || { echo "$(basename "$0" .sh): no $peers; fix: ${fix/torch/torch==2.11.0}" >&2; exit 8; }
  "$peers" -c 'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))' "$@" || {
    echo "$(basename "$0" .sh): $peers lacks one of: $*; fix: ${fix/torch/torch==2.11.0}" >&2
    exit 8
  }
}

# case_of NAME COMMAND...: runs the command and stores its JSON line under the name.
case_of() {
  local name=$1 line
  shift
  line=$(python3 bench/peers/quiet_run.py -- "$@" | grep '^{' | tail -n 1)
  printf '%-12s %s\n' "$name" "$line"
  printf '%s\t%s\n' "$name" "$line" >>"$results"
}
