// SPDX-License-Identifier: Apache-2.0
// The placement of a tensor on the mesh: which dims are sharded over which axes, and over which
// axes the tensor is still a partial sum.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

enum class Order : std::uint8_t { Block, Zigzag };

/// One dim sharded over the product of `axes`, in units of `unit` elements (whole heads), evenly or
/// at the given cuts.
struct Split {
  int dim = 0;
  AxisSet axes;
  std::int64_t unit = 1;
  std::vector<std::int64_t> cuts =
      {};  ///< bounds, in elements; empty: as even as whole units allow
  Order order = Order::Block;
  bool operator==(const Split&) const = default;
};

/// The sharding of a tensor. It is replicated over axes that are not named. The same type describes
/// parameters, gradients, optimizer state, activations at block edges, batches and every entry of a
/// checkpoint.
struct ShardSpec {
  std::vector<Split> splits;
  AxisSet partial;
  /// The axes over which some dim is sharded.
  [[nodiscard]] AxisSet axes() const;
  /// Those over which dim `dim` is sharded.
  [[nodiscard]] AxisSet axes(int dim) const;
  bool operator==(const ShardSpec&) const = default;
};

/// An axis-aligned box of a tensor: begin[d] <= i < end[d].
struct Box {
  std::vector<std::int64_t> begin, end;
  [[nodiscard]] std::int64_t numel() const;
  bool operator==(const Box&) const = default;
};
/// The elements [begin, end) of a box in row-major order. A ZeRO shard of a parameter is such a
/// range.
struct Piece {
  Box box;
  std::int64_t begin = 0, end = 0;
  bool operator==(const Piece&) const = default;
};

Box whole(const std::vector<std::int64_t>& shape);
/// Returns the box of a tensor of global `shape` that `rank` holds (Block order).
Box local_box(const std::vector<std::int64_t>& shape,
              const ShardSpec& spec,
              const Mesh& mesh,
              int rank);
/// Returns the bounds of part `index` of `parts` of a dim of `size`, in whole units; the first
/// parts are one unit larger if the division leaves a remainder.
std::pair<std::int64_t, std::int64_t> even_cut(std::int64_t size,
                                               std::int64_t unit,
                                               int parts,
                                               int index);

}  // namespace tessera::mesh
