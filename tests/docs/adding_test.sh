#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# timeout: 600
# The code on the pages of docs/adding/ compiles unchanged.   usage: adding_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
torch=$("$repository/tools/setup.sh" --where)/torch/include

compiles() {
  sed -n '/^```cpp$/,/^```$/{/^```/d;p}' "$page" >"$box/page.cpp"
  expect "there is code on $page" test -s "$box/page.cpp"
  expect "it compiles" g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror \
    -Wno-missing-field-initializers -I"$repository" -isystem "$torch" -isystem "$torch/torch/csrc/api/include" "$box/page.cpp"
}

pages=0
for page in "$repository"/docs/adding/*.md; do
  if grep -q '^```cpp$' "$page"; then
    claim "the code of $(basename "$page") compiles" compiles
    pages=$((pages + 1))
  fi
done
((pages >= 4)) || { echo "only $pages pages with code"; exit 1; }
claims_done
