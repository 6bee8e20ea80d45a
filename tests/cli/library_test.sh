#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: wide
# timeout: 300
# Another program uses the library: installed, or as a subfolder of its project.   usage: library_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
built=$(dirname "$(dirname "${1:?usage: library_test.sh PROGRAM}")")
libtorch=$("$repository/tools/setup.sh" --where)
warnings="-Wall -Wextra -Werror"

quietly() { "$@" >"$box/out" 2>&1 || { printf 'failed: %s\n' "$*"; cat "$box/out"; exit 1; }; }

installed() { quietly cmake --install "$built" --prefix "$box/prefix"; }

code_of() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d;p}" "$repository/docs/library.md"; }

the_page_builds_and_trains() {
  installed
  mkdir "$box/mine"
  code_of cmake >"$box/mine/CMakeLists.txt"
  code_of cpp >"$box/mine/my_training.cpp"
  code_of json >"$box/mine/my_training.json"
  head -c 20000 "$repository/examples/data/shakespeare.txt" >"$box/mine/my_text.txt"
  cd "$box/mine" || exit 1
  quietly cmake -G Ninja -B build -DCMAKE_PREFIX_PATH="$box/prefix" -DCMAKE_CXX_FLAGS="$warnings"
  quietly cmake --build build -j 1
  TESSERA_CACHE=$box/cache build/my_training >"$box/out" 2>&1
  expect "exit code 0, not $?" test $? = 0
  expect "every step once" test "$(grep -cE '^step [0-9]+ loss [0-9.]+$' "$box/out")" = 20
  expect "the last step" says "step 20 loss " "$box/out"
  echo '{}' >my_training.json
  build/my_training >"$box/out" 2>&1
  expect "exit code 2, not $?" test $? = 2
  expect "what is wrong" says "error: " "$box/out"
}

# Without a folder of libtorch's headers: the face costs a program only the standard library.
the_face_is_light() {
  installed
  echo '#include "tessera/api.h"' >"$box/face.cpp"
  # shellcheck disable=SC2086  # several flags
  expect "it compiles" g++ -std=c++20 -fsyntax-only $warnings -I"$box/prefix/include" "$box/face.cpp"
}

headers_have_no_warnings() {
  installed
  (cd "$box/prefix/include" && find tessera -name '*.h' -printf '#include "%p"\n') >"$box/all.cpp"
  expect "there are headers" test "$(wc -l <"$box/all.cpp")" -gt 100
  # shellcheck disable=SC2086  # several flags
  expect "they compile" g++ -std=c++20 -fsyntax-only $warnings -DNDEBUG -I"$box/prefix/include" \
    -isystem "$libtorch/torch/include" -isystem "$libtorch/torch/include/torch/csrc/api/include" "$box/all.cpp"
}

# Configured, not built: a build would take as long as that of tessera.
a_folder_of_another_project() {
  cat >"$box/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(outer LANGUAGES CXX)
enable_testing()
add_compile_options(-DOF_OUTER)
add_subdirectory("$repository" tessera)
file(WRITE "\${CMAKE_BINARY_DIR}/outer.cpp" "int main() {}")
add_executable(outer "\${CMAKE_BINARY_DIR}/outer.cpp")
target_link_libraries(outer PRIVATE tessera::tessera)
EOF
  quietly cmake -G Ninja -S "$box" -B "$box/build" -DTESSERA_LIBTORCH="$libtorch" -DCMAKE_CXX_FLAGS= \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  local commands=$box/build/compile_commands.json
  grep '"command".*/outer\.cpp' "$commands" >"$box/outer"
  grep '"command".*/tessera/cli/' "$commands" >"$box/inner"
  expect "its flags and the headers" grep -q -- "-I$repository .*-DOF_OUTER" "$box/outer"
  expect "none of tessera's flags" test "$(grep -cE -- '-Wall|-O3|-ffp-contract' "$box/outer")" = 0
  expect "tessera's flags, optimized" says " -O3 " "$box/inner"
  expect "none of its flags" test "$(grep -c OF_OUTER "$box/inner")" = 0
  expect "no type of build" grep -qx "CMAKE_BUILD_TYPE:STRING=" "$box/build/CMakeCache.txt"
  expect "no tests, examples and benchmarks" test "$(grep -cE '"file".*/(tests|examples|bench)/' "$commands")" = 0
}

claim "the program of docs/library.md is built with find_package, and trains" the_page_builds_and_trains
claim "the face of the library needs no header of libtorch" the_face_is_light
claim "the installed headers compile without a warning" headers_have_no_warnings
claim "as a folder of another project it takes no flags and gives none" a_folder_of_another_project
claims_done
