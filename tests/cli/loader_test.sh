#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: fast
# If the program's libraries are missing, it prints its own message.   usage: loader_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
program=${1:?usage: loader_test.sh PROGRAM}

# Copies only the program to $box/tree/bin.
lonely_program() {
  mkdir -p "$box/tree/bin" "$box/tree/lib"
  cp "$program" "$box/tree/bin/tessera"
}
# Runs it without a cache; writes the output to $box/out and $box/err.
run() {
  env -u TESSERA_CACHE -u XDG_CACHE_HOME -u LD_LIBRARY_PATH HOME="$box/home" \
    "$box/tree/bin/tessera" "$@" >"$box/out" 2>"$box/err"
  code=$?
}
# Creates a libtessera.so that needs the library $1, which is then removed.
library_that_needs() {
  echo 'int part(void) { return 0; }' >"$box/part.c"
  echo 'int part(void); int tessera_main(int c, char** v) { return part(); }' >"$box/whole.c"
  cc -shared -fPIC -o "$box/$1" -Wl,-soname,"$1" "$box/part.c"
  cc -shared -fPIC -o "$box/tree/lib/libtessera.so" "$box/whole.c" "$box/$1"
}

without_our_library() {
  lonely_program
  run --help
  expect "exit code 8, not $code" test "$code" = 8
  expect "the library is named" says "libtessera.so" "$box/err"
  expect "the place is named" says "$box/tree/lib/libtessera.so" "$box/err"
  expect "the remedy is named" says "fix: tools/setup.sh" "$box/err"
  expect "nothing on standard output" test ! -s "$box/out"
}

without_libtorch() {
  lonely_program
  library_that_needs libtorch_cpu.so
  run train some.json
  expect "exit code 8, not $code" test "$code" = 8
  expect "the library is named" says "tessera needs is missing: libtorch_cpu.so" "$box/err"
  expect "the cache is named" says "$box/home/.cache/tessera/libtorch-" "$box/err"
  expect "the remedy is named" says "fix: tools/setup.sh" "$box/err"
}

without_another_library() {
  lonely_program
  library_that_needs libnobody.so.7
  run train some.json
  expect "exit code 8, not $code" test "$code" = 8
  expect "the library is named" says "libnobody.so.7" "$box/err"
  expect "the remedy is named" says "tools/setup.sh" "$box/err"
}

with_nonsense() {
  lonely_program
  echo "no library" >"$box/tree/lib/libtessera.so"
  run train some.json
  expect "exit code 8, not $code" test "$code" = 8
  expect "the file is named" says "$box/tree/lib/libtessera.so" "$box/err"
}

claim "a missing libtessera is named with its places" without_our_library
claim "a missing libtorch is named with the caches" without_libtorch
claim "any other missing library is named" without_another_library
claim "a library that is none is named" with_nonsense
claims_done
