#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 300
# What is optional may be missing, half installed or broken: the configuration succeeds without it, and says so in one line.
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
libtorch=$("$repository/tools/setup.sh" --where)
cmake=$(PATH=/usr/bin:/bin:$PATH bash -c "source '$repository/tools/toolchain.sh' && usable_cmake '$(dirname "$libtorch")'")

# configure WITH_FIRST_IN_PATH [ARGUMENTS...]: configures the library and the program.
configure() {
  PATH=$1:$PATH "$cmake" -G Ninja -S "$repository" -B "$box/build" --log-level=NOTICE -DTESSERA_LIBTORCH="$libtorch" \
    -DTESSERA_TESTS=OFF -DTESSERA_EXAMPLES=OFF -DTESSERA_BENCH=OFF "${@:2}" >"$box/out" 2>&1
  local code=$?
  expect "exit code 0, not $code: $(cat "$box/out")" test $code = 0
}

# left_out NAME LINE: one line says that NAME is not used, and the build does not refer to it.
left_out() {
  expect "one line about $1" test "$(grep -cE "^-- $1 .*$2" "$box/out")" = 1
}

# Open MPI's programs without its headers, as in Debian's openmpi-bin: the wrapper names folders that do not exist.
mpi_without_headers() {
  shim "$box/first" mpicxx.openmpi '
    case "$*" in
      *-showme:compile*) echo "-I/nowhere/openmpi/include -pthread" ;;
      *-showme:link*) echo "-L/nowhere/openmpi/lib -lmpi_cxx -lmpi" ;;
      *) exit 1 ;;
    esac'
  configure "$box/first"
  left_out MPI "run.transport mpi is not built.*libopenmpi-dev"
  expect "no module for MPI" test -z "$(grep tessera_mpi "$box/build/build.ninja")"
}

failing_mpi() {
  shim "$box/first" mpicxx 'exit 1'
  shim "$box/first" mpicxx.openmpi 'kill -SEGV $$'
  configure "$box/first"
  left_out MPI "run.transport mpi is not built"
}

no_mpi() {
  [[ -z $(type -P mpicxx mpicxx.openmpi) ]] || { echo "this machine has an MPI"; exit 0; }
  configure "$box/none"
  expect "nothing to say: $(cat "$box/out")" test -z "$(grep -E '^-- MPI' "$box/out")"
}

broken_ccache() {
  shim "$box/first" ccache 'echo "ccache: error: Failed to create directory /x: Permission denied" >&2; exit 1'
  configure "$box/first"
  left_out ccache "Permission denied.*builds are not cached"
  expect "compilers are called without it" test -z "$(grep -F "$box/first/ccache" "$box/build/build.ninja")"
}

broken_lld() {
  shim "$box/first" ld.lld 'exit 1'
  configure "$box/first"
  left_out ld.lld "the default linker is used"
  expect "it does not link" test -z "$(grep -F -- -fuse-ld=lld "$box/build/build.ninja")"
}

broken_cuda() {
  shim "$box/first" nvcc 'exit 1'
  shim "$box/first" nvidia-smi 'exit 9'
  CUDACXX=$box/first/nvcc CUDA_HOME=/nowhere CUDA_PATH=/nowhere configure "$box/first"
}

# The plugin that is asked for is refused before anything is compiled: its kernels need CUDA 13, whose runtime libtorch has.
another_nvcc() {
  shim "$box/old" nvcc 'echo "Cuda compilation tools, release 12.4, V12.4.131"'
  shim "$box/broken" nvcc 'exit 1'
  local which
  for which in old broken; do
    "$cmake" -G Ninja -S "$repository" -B "$box/build" --log-level=NOTICE -DTESSERA_LIBTORCH="$libtorch" -DTESSERA_TESTS=OFF \
      -DTESSERA_EXAMPLES=OFF -DTESSERA_BENCH=OFF -DTESSERA_CUDA_PLUGIN=ON -DTESSERA_NVCC="$box/$which/nvcc" >"$box/long" 2>&1 &&
      expect "nvcc is refused" false
    tr -s ' \n' ' ' <"$box/long" >"$box/$which.out"  # CMake breaks lines
  done
  expect "which one is needed, and which one it is" says "needs nvcc of CUDA 13, and $box/old/nvcc is of CUDA 12.4" "$box/old.out"
  expect "one without a version" says "$box/broken/nvcc does not say its version" "$box/broken.out"
}

# A clone as far as a configuration needs it; its build folder is its own.
clone_with_tools() {
  mkdir -p "$box/clone/tools"
  local name
  for name in CMakeLists.txt CMakePresets.json cmake tessera tests docs examples bench share packages.txt; do
    ln -s "$repository/$name" "$box/clone/$name"
  done
  cp "$repository"/tools/*.sh "$box/clone/tools/"
}

# conda and pyenv stand first in PATH, with programs that fail or are too old, and conda's variables name its own compiler.
conda_first() {
  clone_with_tools
  for name in python3 ninja ccache ld.lld x86_64-conda-linux-gnu-c++; do shim "$box/conda/bin" "$name" 'exit 127'; done
  shim "$box/conda/bin" cmake 'echo "cmake version 3.10.2"'

  (cd "$box/clone" && env CONDA_PREFIX="$box/conda" CXX="$box/conda/bin/x86_64-conda-linux-gnu-c++" \
    CXXFLAGS="-I$box/conda/include" LDFLAGS="-L$box/conda/lib" CMAKE_PREFIX_PATH="$box/conda" PATH="$box/conda/bin:$PATH" \
    tools/build.sh release none) >"$box/out" 2>&1
  local code=$?

  expect "exit code 0, not $code: $(cat "$box/out")" test $code = 0
  expect "one line" says "conda is active: the build does not use its CXX CXXFLAGS LDFLAGS CMAKE_PREFIX_PATH" "$box/out"
  expect "nothing of conda's" test -z "$(grep -F "$box/conda" "$box/clone/build/release/build.ninja")"
}

# ./check makes warnings errors in a folder that ./quickstart may have built: what it built must stay valid.
warnings_as_errors() {
  configure "$box/none"
  commands_of_headers >"$box/before"
  expect "there are precompiled headers" grep -q "FLAGS" "$box/before"
  configure "$box/none" -DTESSERA_WERROR=ON
  commands_of_headers >"$box/after"
  expect "objects see it" grep -q -- "-Werror" "$box/build/build.ninja"
  expect "the same commands" cmp "$box/before" "$box/after"
}
commands_of_headers() { grep -A6 -E '^build .*cmake_pch\.hxx\.gch:' "$box/build/build.ninja"; }

claim "Open MPI without its headers costs the link over MPI and one line" mpi_without_headers
claim "an MPI whose compiler fails costs the link over MPI and one line" failing_mpi
claim "an MPI that is not installed is not mentioned" no_mpi
claim "a ccache that fails is not used" broken_ccache
claim "an lld that fails is not used" broken_lld
claim "a CUDA toolkit that fails changes nothing" broken_cuda
claim "an nvcc of another CUDA does not compile the plugin" another_nvcc
claim "the system's programs are used where conda is first in PATH" conda_first
claim "warnings as errors make no precompiled header again" warnings_as_errors
claims_done
