// SPDX-License-Identifier: Apache-2.0
// The rounds in which ranks that divide experts send each other rows: a bound of the rows that an
// owner of experts holds at a time, whatever experts the tokens choose. Legend: S sources (the
// ranks of the group, which are also the owners), E experts, R rows of this rank's tokens, Q rows
// of a round for this rank's experts.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera::nn {

/// The rows of one micro-batch, or of a rank's share of it, that go to one expert.
struct ExpertUnit {
  int source = 0;                    ///< index of the rank whose tokens these are
  std::int64_t expert = 0;           ///< among the experts of this rank
  std::int64_t begin = 0, rows = 0;  ///< place among the Q rows
};

/// One exchange, as one rank sees it.
struct ExpertRound {
  std::vector<ExpertUnit> units;  ///< not empty ones of this rank's experts, by source, then expert
  std::int64_t rows = 0;          ///< Q
  std::vector<std::int64_t> parts;  ///< [S, S]: rows from source i to owner j
  /// For each owner the first of the R rows that it gets in this round, and their number. R is
  /// sorted by expert.
  std::vector<std::pair<std::int64_t, std::int64_t>> sent;
};

/// Rows that an owner takes in one round: half as many again as the first owner has if all experts
/// have equal loads and every source `most_of_source` rows, or one unit more if that is larger.
/// `most_of_unit`: the rows of the largest unit; a unit is never split, because its rows are those
/// of one product.
std::int64_t rows_of_round(std::int64_t num_experts,
                           int sources,
                           std::int64_t most_of_source,
                           std::int64_t most_of_unit);

/// The rounds of all ranks' units, at least one. `counts_SE`: the rows of every source for each
/// expert; `index`: this rank. Owners have consecutive experts (mesh::even_cut), and take units by
/// source, then by expert, until a round is full. Every rank of the group gets the same number of
/// rounds, because the result is a function of what all of them know. Pure. Cost: O(S E).
std::vector<ExpertRound> rounds_of(std::span<const std::int64_t> counts_SE, int sources, int index);

}  // namespace tessera::nn
