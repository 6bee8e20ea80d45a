#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if necessary and builds it.   usage: tools/build.sh PRESET [TARGET...]
#
# The number of parallel compilers is the number of cores, or less if memory is short (compiling a file that includes
# libtorch takes about 1.3 GB); CMAKE_BUILD_PARALLEL_LEVEL overrides it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?usage: tools/build.sh PRESET [TARGET...]}
shift

jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-}
if [[ -z $jobs ]]; then
  cores=$(nproc)
  fitting=$(awk '/^MemAvailable/ {print int($2 / 1300000)}' /proc/meminfo)
  jobs=$((fitting < cores ? fitting : cores))
  ((jobs >= 1)) || jobs=1
fi

folder=build/$preset
where=$(tools/setup.sh --where)
# Configure the first time, and again if libtorch has moved; ninja re-runs CMake for every other change.
if [[ ! -f $folder/build.ninja ]] || ! grep -qxF -e "TESSERA_LIBTORCH:PATH=$where" \
    -e "TESSERA_LIBTORCH:UNINITIALIZED=$where" "$folder/CMakeCache.txt"; then
  cmake --preset "$preset" --log-level=WARNING --no-warn-unused-cli -DTESSERA_LIBTORCH="$where"
fi
cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
