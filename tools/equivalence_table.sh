#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of layouts that must equal one rank and writes their page.
#
# usage: tools/equivalence_table.sh [optimizers]           docs/equivalence.md, every cell: about 20 minutes
#        tools/equivalence_table.sh combinations           docs/combinations.md, any three values together: 7 minutes
#        tools/equivalence_table.sh combinations --whole   the same, and every layout of all combinations: hours
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-optimizers}${2:-}
case $what in
  optimizers | combinations | combinations--whole) ;;
  *) echo "equivalence_table: unknown: $*; fix: tools/equivalence_table.sh [optimizers|combinations [--whole]]" >&2; exit 2 ;;
esac
test_program=build/release/bin/equivalence_test
[[ -x $test_program ]] || { echo "equivalence_table: $test_program is not built; fix: tools/build.sh release" >&2; exit 8; }
[[ -z $(git status --porcelain -- tessera tests) ]] ||
  { echo "equivalence_table: tessera/ or tests/ has changes that no commit holds; fix: commit them" >&2; exit 2; }
table=$(mktemp)
trap 'rm -f "$table"' EXIT
commit=$(git rev-parse --short HEAD)

optimizers_page() {
  cat <<'HEAD'
# Layouts that agree to the bit

Cells of optimizer x ranks {2, 3, 4} x precision x accumulation {1, 2} x recompute {none, full, selective}. A cell counts
where three steps with dropout and clipping, an evaluation and the checkpoint after them are the same bits in ZeRO stages 0,
1, 2 and 3 and on one rank with as many micro-batches. Optimizers that exchange signs promise this for stages 0 and 1 and one
number of ranks, see [optimizers.md](optimizers.md).

In fp16 that holds as long as the loss scales agree. As in DeepSpeed a stage 0 that is written down lowers its scale at the
first overflow, the other stages by default at the second, and doubles it a step later than they, see
[precision.md](precision.md).

HEAD
  cat "$table"
  echo
  echo "Made by \`tools/equivalence_table.sh\` at commit $commit. A selection in which every pair of"
  echo "values stands together runs with the other tests (\`equivalence.matrix\`), each cell in a pipeline of two stages as well;"
  echo "\`equivalence.pipeline\` has the other pipelines."
}

combinations_page() {
  cat <<'HEAD'
# Combinations of layouts

Pipeline (pp) x tensor (tp: 1d, or a grid of 2d, 2.5d of depth 2, 3d) x cut sequence x context (cp: ring or Ulysses) x data
(dp) parallelism on up to 8 ranks, with every schedule, ZeRO stage 0 to 3, precision, recomputation {none, full, selective}, a
tied head and one of its own, and layers that divide evenly (6 of 4 heads) or do not (7 of 5 heads, 83 features, 259 tokens).
Each equals one rank with the same micro-batches, or is refused before anything starts. Values of any three of these
stand together in a line here: in one that trains where they can be trained together, in one that is refused where they can be
refused.

"To the bit": three steps with dropout and clipping, an evaluation and the checkpoint after them. Where ranks share a layer
sums are cut elsewhere, and the largest deviations stand here: of the first gradient, relative to the Frobenius norm of its
tensor (promised: 2e-6 in fp32, 2e-2 x sqrt(layers / 12) in 16 bits), and of the losses of ten steps (2e-5, 2e-3). The reference
neither shards nor recomputes. `tessera verify CONFIG -n N` does this for a configuration of yours.

HEAD
  cat "$table"
  echo
  echo "Made by \`tools/equivalence_table.sh ${what/--/ --}\` at commit $commit. A selection in which every pair of values"
  echo "stands together runs with the other tests (\`equivalence.combinations\`), these and all others with \`./check --all\`."
}

case $what in
  optimizers)
    TESSERA_EQUIVALENCE_TABLE=$table "$test_program" --gtest_filter='WholeMatrix.*'
    optimizers_page >docs/equivalence.md ;;
  combinations)
    TESSERA_COMBINATIONS_TABLE=$table "$test_program" --gtest_filter='CombinationsTable.*'
    combinations_page >docs/combinations.md ;;
  combinations--whole)
    TESSERA_COMBINATIONS_TABLE=$table "$test_program" --gtest_filter='WholeCombinations.*'
    combinations_page >docs/combinations.md ;;
esac
