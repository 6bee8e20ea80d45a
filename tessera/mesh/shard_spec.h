// SPDX-License-Identifier: Apache-2.0
// How a tensor lies on the mesh: which dim is cut over which axes, and over which axes it is still
// a partial sum.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

enum class Order : std::uint8_t { Block, Zigzag };

/// One dim cut over the product of `axes`, in units of `unit` elements (whole heads), evenly or at
/// given cuts.
struct Split {
  int dim = 0;
  AxisSet axes;
  std::int64_t unit = 1;
  std::vector<std::int64_t> cuts =
      {};  ///< bounds, in elements; empty: as even as whole units allow
  Order order = Order::Block;
  bool operator==(const Split&) const = default;
};

/// An axis that is not named: replicated. The same type describes parameters, gradients, optimizer
/// state, activations at block edges, batches and every entry of a checkpoint.
struct ShardSpec {
  std::vector<Split> splits;
  AxisSet partial;
  bool operator==(const ShardSpec&) const = default;
};

/// A box of a tensor: begin[d] <= i < end[d].
struct Box {
  std::vector<std::int64_t> begin, end;
  [[nodiscard]] std::int64_t numel() const;
  bool operator==(const Box&) const = default;
};
/// Elements [begin, end) of the box, row-major: a ZeRO shard of a parameter is such a range.
struct Piece {
  Box box;
  std::int64_t begin = 0, end = 0;
  bool operator==(const Piece&) const = default;
};

Box whole(const std::vector<std::int64_t>& shape);
/// The box that `rank` holds of a tensor of global `shape` (Block order).
Box local_box(const std::vector<std::int64_t>& shape,
              const ShardSpec& spec,
              const Mesh& mesh,
              int rank);
/// Bounds of part `index` of `parts` of a dim of `size` in whole units, the first parts one unit
/// larger.
std::pair<std::int64_t, std::int64_t> even_cut(std::int64_t size,
                                               std::int64_t unit,
                                               int parts,
                                               int index);

}  // namespace tessera::mesh
