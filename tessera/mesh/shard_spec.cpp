// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/shard_spec.h"

#include <algorithm>

#include <fmt/core.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

/// Returns the bounds of one part of [0, size), at the given cuts or as even as whole units allow.
std::pair<std::int64_t, std::int64_t> cut(const Split& split,
                                          std::int64_t size,
                                          int parts,
                                          int index) {
  if (split.cuts.empty()) return even_cut(size, split.unit, parts, index);
  TESSERA_REQUIRE(std::ssize(split.cuts) == parts + 1 && split.cuts.front() == 0 &&
                      split.cuts.back() == size &&
                      std::is_sorted(split.cuts.begin(), split.cuts.end()),
                  Shape,
                  fmt::format("the {} cuts of dim {} do not make {} parts of {} elements",
                              split.cuts.size(),
                              split.dim,
                              parts,
                              size),
                  fmt::format("give {} ascending bounds from 0 to {}", parts + 1, size));
  return {split.cuts[index], split.cuts[index + 1]};
}

}  // namespace

AxisSet ShardSpec::axes() const {
  AxisSet out;
  for (const Split& split : splits)
    out = out | split.axes;
  return out;
}

AxisSet ShardSpec::axes(int dim) const {
  AxisSet out;
  for (const Split& split : splits) {
    if (split.dim == dim) out = out | split.axes;
  }
  return out;
}

std::int64_t Box::numel() const {
  std::int64_t count = 1;
  for (std::size_t d = 0; d < begin.size(); ++d)
    count *= end[d] - begin[d];
  return count;
}

Box whole(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

Box local_box(const std::vector<std::int64_t>& shape,
              const ShardSpec& spec,
              const Mesh& mesh,
              int rank) {
  Box box = whole(shape);
  for (const Split& split : spec.splits) {
    TESSERA_REQUIRE(
        split.dim >= 0 && split.dim < std::ssize(shape),
        Shape,
        fmt::format("dim {} of a tensor of {} dims cannot be cut", split.dim, shape.size()),
        "");
    const int parts = mesh.size(split.axes);
    TESSERA_REQUIRE(
        split.order == Order::Block || parts == 1,
        Unsupported,
        fmt::format("dim {} is cut in zigzag order: a rank holds two boxes of it", split.dim),
        "");
    // A dim may be sharded twice, over different axes: the second split divides the result of the
    // first.
    auto &begin = box.begin[split.dim], &end = box.end[split.dim];
    const auto [from, to] = cut(split, end - begin, parts, mesh.index(rank, split.axes));
    end = begin + to;
    begin += from;
  }
  return box;
}

std::pair<std::int64_t, std::int64_t> even_cut(std::int64_t size,
                                               std::int64_t unit,
                                               int parts,
                                               int index) {
  TESSERA_REQUIRE(unit >= 1 && size % unit == 0,
                  Shape,
                  fmt::format("{} elements are not a whole number of units of {}", size, unit),
                  fmt::format("choose a size that is a multiple of {}", unit));
  const std::int64_t units = size / unit;
  const std::int64_t least = units / parts, larger = units % parts;
  const std::int64_t begin = index * least + std::min<std::int64_t>(index, larger);
  const std::int64_t end = begin + least + (index < larger ? 1 : 0);
  return {begin * unit, end * unit};
}

}  // namespace tessera::mesh
