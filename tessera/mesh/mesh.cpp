// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/mesh.h"

#include <algorithm>

#include <fmt/core.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

std::string product(const std::array<int, kNumAxes>& sizes) {
  std::string text;
  for (int i = 0; i < kNumAxes; ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : " x ", name(static_cast<Axis>(i)), sizes[i]);
  }
  return text;
}

}  // namespace

std::string_view name(Axis axis) noexcept {
  static constexpr std::array<std::string_view, kNumAxes> kNames = {
      "pp", "dp.rep", "dp.shard", "ep", "cp", "tp.depth", "tp.row", "tp.col"};
  return kNames[static_cast<std::size_t>(axis)];
}

Mesh::Mesh(const Sizes& sizes)
    : sizes_{sizes.pp,
             sizes.dp_rep,
             sizes.dp_shard,
             sizes.ep,
             sizes.cp,
             sizes.tp_depth,
             sizes.tp_row,
             sizes.tp_col} {
  const bool positive = std::all_of(sizes_.begin(), sizes_.end(), [](int n) { return n >= 1; });
  TESSERA_REQUIRE(positive,
                  Config,
                  "every axis of the mesh needs at least one rank: " + product(sizes_),
                  "choose sizes whose product is the number of ranks");
  std::int64_t ranks = 1;
  for (const int n : sizes_) {
    ranks *= n;
    TESSERA_REQUIRE(ranks <= INT32_MAX,
                    Config,
                    "the mesh has too many ranks: " + product(sizes_),
                    "choose sizes whose product is the number of ranks");
  }
}

Mesh Mesh::data_parallel(int ranks) {
  return Mesh({.dp_shard = ranks});
}

int Mesh::size() const {
  return size(AxisSet::all());
}
int Mesh::size(Axis axis) const {
  return sizes_[static_cast<std::size_t>(axis)];
}

int Mesh::size(AxisSet axes) const {
  int ranks = 1;
  for (int i = 0; i < kNumAxes; ++i) {
    if (axes.has(static_cast<Axis>(i))) ranks *= sizes_[i];
  }
  return ranks;
}

int Mesh::coordinate(int rank, Axis axis) const {
  int stride = 1;
  for (int i = kNumAxes - 1; i > static_cast<int>(axis); --i)
    stride *= sizes_[i];
  return rank / stride % size(axis);
}

int Mesh::index(int rank, AxisSet axes) const {
  int position = 0;
  for (int i = 0; i < kNumAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axes.has(axis)) position = position * sizes_[i] + coordinate(rank, axis);
  }
  return position;
}

std::vector<int> Mesh::group(int rank, AxisSet axes) const {
  // Ascending ranks are in order of index(): in both, the last axis varies fastest.
  int base = rank;
  std::vector<int> offsets = {0};
  int stride = 1;
  for (int i = kNumAxes - 1; i >= 0; --i) {
    const auto axis = static_cast<Axis>(i);
    if (axes.has(axis)) {
      base -= coordinate(rank, axis) * stride;
      const std::size_t before = offsets.size();
      for (int k = 1; k < sizes_[i]; ++k) {
        for (std::size_t j = 0; j < before; ++j)
          offsets.push_back(offsets[j] + k * stride);
      }
    }
    stride *= sizes_[i];
  }
  for (int& offset : offsets)
    offset += base;
  return offsets;
}

bool Mesh::is_first(int rank, AxisSet axes) const {
  return index(rank, axes) == 0;
}

std::string Mesh::text() const {
  return fmt::format("pp {} x dp {} x cp {} x tp {}",
                     size(Axis::Pp),
                     size(AxisSet::dp()),
                     size(Axis::Cp),
                     size(AxisSet::tp()));
}

}  // namespace tessera::mesh
