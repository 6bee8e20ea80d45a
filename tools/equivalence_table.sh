#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the whole matrix of layouts that must agree to the bit (about 20 minutes) and writes docs/equivalence.md.
#
# usage: tools/equivalence_table.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
test_program=build/release/bin/equivalence_test
[[ -x $test_program ]] || { echo "equivalence_table: $test_program is not built; fix: tools/build.sh release" >&2; exit 8; }
[[ -z $(git status --porcelain -- tessera tests) ]] ||
  { echo "equivalence_table: tessera/ or tests/ has changes that no commit holds; fix: commit them" >&2; exit 2; }
table=$(mktemp)
trap 'rm -f "$table"' EXIT
TESSERA_EQUIVALENCE_TABLE=$table "$test_program" --gtest_filter='WholeMatrix.*'
{
  cat <<'HEAD'
# Layouts that agree to the bit

Cells of optimizer x ranks {2, 3, 4} x precision x accumulation {1, 2} x recompute {none, full, selective}. A cell counts
where three steps with dropout and clipping, an evaluation and the checkpoint after them are the same bits in ZeRO stages 0,
1, 2 and 3 and on one rank with as many micro-batches. Optimizers that exchange signs promise this for stages 0 and 1 and one
number of ranks, see [optimizers.md](optimizers.md).

HEAD
  cat "$table"
  echo
  echo "Made by \`tools/equivalence_table.sh\` at commit $(git rev-parse --short HEAD). A selection in which every pair of"
  echo "values stands together runs with the other tests (\`equivalence.matrix\`), each cell in a pipeline of two stages as well;"
  echo "\`equivalence.pipeline\` has the other pipelines."
} >docs/equivalence.md
