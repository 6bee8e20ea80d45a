# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Chooses the programs that build tessera. Sourced by tools/build.sh, tools/setup.sh and ./check.
#
# use_toolchain CACHE puts the system's programs, those of packages.txt, before others that stand first in PATH: conda and
# pyenv bring compilers, a cmake and libraries of other versions. A cmake or compiler that is too old is replaced by a newer
# one: CACHE/cmake-* (tools/setup.sh fetches it), or g++-12 and later; one line says so.

readonly kSystemPrograms=/usr/bin:/bin
readonly kLeastCmake=3.25 kLeastCompiler=12
readonly kCmakeWheel=cmake-3.31.6

# at_least A B: true if version A is B or later.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

version_of_cmake() { "$1" --version 2>/dev/null | sed -n '1s/^cmake version //p'; }

# Prints the path of the first cmake in PATH that works and is new enough, then that of the cache; fails without one.
usable_cmake() {  # usable_cmake CACHE
  local candidate found
  while IFS= read -r candidate; do
    found=$(version_of_cmake "$candidate") || continue
    if [[ -n $found ]] && at_least "$found" $kLeastCmake; then printf '%s\n' "$candidate"; return; fi
  done < <(type -ap cmake; printf '%s\n' "$1/$kCmakeWheel/bin/cmake")
  return 1
}

# Prints the name of a compiler that is new enough: CXX if it is set, c++, or the newest g++-N.
usable_compiler() {
  local candidate found
  for candidate in ${CXX:+"$CXX"} c++ g++ g++-15 g++-14 g++-13 g++-12; do
    found=$("$candidate" -dumpfullversion -dumpversion 2>/dev/null) || continue
    # clang++ also answers; which of its versions work is not known, so that any is tried.
    if "$candidate" --version 2>/dev/null | grep -qi clang || at_least "$found" $kLeastCompiler; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

# Removes the variables with which conda's compilers announce themselves; the build uses the system's.
forget_conda() {
  [[ -n ${CONDA_PREFIX:-} ]] || return 0
  local name forgotten=()
  for name in CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CMAKE_PREFIX_PATH CMAKE_ARGS CPATH LIBRARY_PATH LD_LIBRARY_PATH; do
    if [[ ${!name:-} == *"$CONDA_PREFIX"* || ${!name:-} == *-conda-* ]]; then
      forgotten+=("$name")
      unset "$name"
    fi
  done
  ((${#forgotten[@]} == 0)) || printf 'conda is active: the build does not use its %s\n' "${forgotten[*]}"
}

use_toolchain() {  # use_toolchain CACHE
  forget_conda
  PATH=$kSystemPrograms:$PATH
  local cmake compiler
  if cmake=$(usable_cmake "$1") && [[ $cmake != "$(type -P cmake)" ]]; then
    printf 'cmake %s is used, from %s\n' "$(version_of_cmake "$cmake")" "${cmake%/*}"
    PATH=${cmake%/*}:$PATH
  fi
  if compiler=$(usable_compiler) && [[ $compiler != "${CXX:-c++}" ]]; then
    printf '%s is used, because %s is missing or older than GCC %s\n' "$compiler" "${CXX:-c++}" $kLeastCompiler
    export CXX=$compiler
  fi
  export PATH
}
