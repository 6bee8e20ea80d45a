#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset where that is needed and builds it.   usage: tools/build.sh PRESET [TARGET...]
#
# As many compilers run at once as there are cores, but no more than memory holds (a file that includes libtorch
# takes about 1.3 GB); CMAKE_BUILD_PARALLEL_LEVEL overrides that.
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
# Configure once, and again when libtorch has moved; ninja re-runs CMake itself for everything else.
if [[ ! -f $folder/build.ninja ]] || ! grep -qxF -e "TESSERA_LIBTORCH:PATH=$where" \
    -e "TESSERA_LIBTORCH:UNINITIALIZED=$where" "$folder/CMakeCache.txt"; then
  cmake --preset "$preset" --log-level=WARNING --no-warn-unused-cli -DTESSERA_LIBTORCH="$where"
fi
cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
