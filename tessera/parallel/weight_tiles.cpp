// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weight_tiles.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

std::string tile_obstacle(const ParamInfo& info) {
  if (info.stacked()) return "holds the matrices of experts, which are separate already";
  // The bias of a fused projection has several dims too.
  if (info.shape.size() < 2 || info.matrix_shape.size() < 2) return "is a vector";
  if (info.cut()) return "is divided among ranks that share layers";
  return "";
}

nn::ParamInfos tiles_of(const std::shared_ptr<const ParamInfo>& info, std::int64_t count) {
  const std::int64_t all = info->shape.front(),
                     of_row = info->numel() / std::max<std::int64_t>(1, all);
  const std::int64_t unit = kChunk / std::gcd(kChunk, of_row);
  const std::int64_t wanted = (all + count - 1) / std::max<std::int64_t>(1, count);
  const std::int64_t rows = (wanted + unit - 1) / unit * unit;
  if (count <= 1 || rows >= all) return {info};
  nn::ParamInfos out;
  for (std::int64_t begin = 0; begin < all; begin += rows) {
    ParamInfo tile = *info;
    tile.box = mesh::whole(info->shape);
    tile.box.begin.front() = begin;
    tile.box.end.front() = std::min(begin + rows, all);
    tile.room = tile.box.numel();
    // The gradient of a tile is never sent as rows of a table.
    if (tile.role == Role::TokenTable) tile.role = Role::OutputHead;
    out.push_back(std::make_shared<const ParamInfo>(std::move(tile)));
  }
  return out;
}

nn::ParamInfos in_tiles(const nn::ParamInfos& params, const TileCount& count) {
  if (!count) return params;
  nn::ParamInfos out;
  for (const auto& info : params) {
    const nn::ParamInfos tiles = tiles_of(info, count(*info));
    out.insert(out.end(), tiles.begin(), tiles.end());
  }
  return out;
}

bool is_tile(const ParamInfo& info) {
  return !info.stacked() && !info.cut() && info.local_numel() < info.numel();
}

}  // namespace tessera::parallel
