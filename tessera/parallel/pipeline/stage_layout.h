// SPDX-License-Identifier: Apache-2.0
// Assigns the blocks of a model to the stages of a pipeline.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::parallel {

/// The order in which the parts of a model are assigned to stages. Loop: part v on stage v mod p.
/// Fold: with two chunks, from the first stage to the last and back, so that a stage holds parts r
/// and 2p - 1 - r.
enum class Placement : std::uint8_t { Loop, Fold };

/// A model is divided into stages * chunks parts of consecutive blocks; every stage holds `chunks`
/// of them. Without bounds one stage holds all.
struct StageLayout {
  int stages = 1;
  int chunks = 1;
  Placement placement = Placement::Loop;
  /// Part v has blocks [bounds[v], bounds[v + 1]); stages * chunks + 1 entries.
  std::vector<int> bounds;

  [[nodiscard]] int parts() const { return stages * chunks; }
  /// The index of the part that is a stage's chunk.
  [[nodiscard]] int part(int stage, int chunk) const {
    if (placement == Placement::Fold && chunk == 1) return 2 * stages - 1 - stage;
    return chunk * stages + stage;
  }
  [[nodiscard]] int stage_of_part(int part) const {
    if (placement == Placement::Fold && part >= stages) return 2 * stages - 1 - part;
    return part % stages;
  }
  [[nodiscard]] int chunk_of_part(int part) const { return part / stages; }
  /// Blocks [first, second) of a stage's chunk; the model has `blocks` blocks.
  [[nodiscard]] std::pair<int, int> blocks(int stage, int chunk, int blocks) const {
    if (bounds.empty()) return {0, blocks};
    const auto v = static_cast<std::size_t>(part(stage, chunk));
    return {bounds[v], bounds[v + 1]};
  }
  [[nodiscard]] int stage_of_block(int block) const {
    if (bounds.empty()) return 0;
    int v = 0;
    while (bounds[static_cast<std::size_t>(v) + 1] <= block)
      ++v;
    return stage_of_part(v);
  }
  bool operator==(const StageLayout&) const = default;
};

}  // namespace tessera::parallel
