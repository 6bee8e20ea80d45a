// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/expert_rounds.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/mesh/shard_spec.h"

namespace tessera::nn {
namespace {

std::size_t index_of(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

std::int64_t rows_of_round(std::int64_t num_experts,
                           int sources,
                           std::int64_t most_of_source,
                           std::int64_t most_of_unit) {
  if (num_experts == 0) return 0;
  const auto [first, last] = mesh::even_cut(num_experts, 1, sources, 0);
  const std::int64_t equal =
      (most_of_source * sources * (last - first) + num_experts - 1) / num_experts;
  return equal + std::max((equal + 1) / 2, most_of_unit);
}

std::vector<ExpertRound> rounds_of(std::span<const std::int64_t> counts_SE,
                                   int sources,
                                   int index) {
  TESSERA_ASSERT(sources > 0 && std::ssize(counts_SE) % sources == 0);
  const std::int64_t E = std::ssize(counts_SE) / sources;
  const auto of_source = [&](int source) {
    return counts_SE.subspan(index_of(source * E), index_of(E));
  };
  std::int64_t most_of_source = 0, most_of_unit = 0;
  for (int source = 0; source < sources; ++source) {
    const auto counts = of_source(source);
    most_of_source =
        std::max(most_of_source, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    for (const std::int64_t rows : counts)
      most_of_unit = std::max(most_of_unit, rows);
  }
  const std::int64_t room = rows_of_round(E, sources, most_of_source, most_of_unit);
  // The first of this rank's rows for each expert.
  std::vector<std::int64_t> first_row(index_of(E), 0);
  const auto mine = of_source(index);
  std::exclusive_scan(mine.begin(), mine.end(), first_row.begin(), std::int64_t{0});

  const auto n = index_of(sources);
  const ExpertRound empty = {.units = {},
                             .rows = 0,
                             .parts = std::vector<std::int64_t>(n * n, 0),
                             .sent = std::vector<std::pair<std::int64_t, std::int64_t>>(n)};
  std::vector<ExpertRound> out(1, empty);
  for (int owner = 0; owner < sources; ++owner) {
    const auto [first, last] = mesh::even_cut(E, 1, sources, owner);
    std::size_t at = 0;
    std::int64_t held = 0;
    for (int source = 0; source < sources; ++source) {
      for (std::int64_t expert = first; expert < last; ++expert) {
        const std::int64_t rows = of_source(source)[index_of(expert)];
        if (rows == 0) continue;
        if (held + rows > room) {
          ++at;
          held = 0;
        }
        if (at == out.size()) out.push_back(empty);
        ExpertRound& round = out[at];
        round.parts[index_of(source) * n + index_of(owner)] += rows;
        if (source == index) {
          auto& [begin, count] = round.sent[index_of(owner)];
          if (count == 0) begin = first_row[index_of(expert)];
          count += rows;
        }
        if (owner == index) {
          round.units.push_back({source, expert - first, held, rows});
          round.rows = held + rows;
        }
        held += rows;
      }
    }
  }
  return out;
}

}  // namespace tessera::nn
