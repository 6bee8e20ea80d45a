# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The C++ code on the pages of docs/adding/.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
torch=$("$repository/tools/setup.sh" --where)/torch/include
mapfile -t pages < <(grep -l '^```cpp$' "$repository"/docs/adding/*.md)
((${#pages[@]} >= 4)) || { echo "only ${#pages[@]} pages with code"; exit 1; }

# compiles PAGE...: the code of the pages, as one file, compiles unchanged.
compiles() {
  awk -f "$repository/tests/support/code_of_page.awk" "$@" >"$box/pages.cpp"
  expect "there is code" grep -qv '^#line' "$box/pages.cpp"
  expect "it compiles" g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Wno-missing-field-initializers -I"$repository" \
    -isystem "$torch" -isystem "$torch/torch/csrc/api/include" "$box/pages.cpp"
}
