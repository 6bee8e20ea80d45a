#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if necessary and builds it.   usage: tools/build.sh [--werror] PRESET [TARGET...]
#
# --werror makes warnings errors from now on in this build folder; ./check uses it with the compilers that were tried. With the
# target `none` nothing is built. The number of parallel compilers is the number of cores, or less if memory is short (compiling
# a file that includes libtorch takes about 1.3 GB); CMAKE_BUILD_PARALLEL_LEVEL overrides it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
options=()
if [[ ${1:-} == --werror ]]; then
  options+=(-DTESSERA_WERROR=ON)
  shift
fi
preset=${1:?usage: tools/build.sh [--werror] PRESET [TARGET...]}
shift
where=$(tools/setup.sh --where)
options+=(-DTESSERA_LIBTORCH="$where")
# shellcheck source=tools/toolchain.sh
source tools/toolchain.sh
use_toolchain "$(dirname "$where")"

jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-}
if [[ -z $jobs ]]; then
  cores=$(nproc)
  fitting=$(awk '/^MemAvailable/ {print int($2 / 1300000)}' /proc/meminfo)
  jobs=$((fitting < cores ? fitting : cores))
  ((jobs >= 1)) || jobs=1
fi

# configured FOLDER: true if the folder was configured with these options; ninja re-runs CMake for every other change.
configured() {
  [[ -f $1/build.ninja ]] || return 1
  local option
  for option in "${options[@]}"; do
    grep -qE "^${option%%=*}:[A-Z]+=${option#*=}\$" <(sed 's/^/-D/' "$1/CMakeCache.txt") || return 1
  done
}

if ! configured "build/$preset"; then
  # The preset's own variables are not news.
  cmake --preset "$preset" --log-level=NOTICE --no-warn-unused-cli "${options[@]}" |
    { grep -vE '^(Not searching for unused|Preset CMake|  [A-Z_]+=|-- (Configuring|Generating) done|-- Build files|$)' || true; }
fi
[[ ${1:-} != none ]] || exit 0
cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
