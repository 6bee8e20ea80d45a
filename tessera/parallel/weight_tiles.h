// SPDX-License-Identifier: Apache-2.0
// Divides weights into tiles of rows, each of which has a flat buffer of its own. Pure functions:
// the run (model_instance.h) and the prediction of its memory (planned_buffers.h) both use them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/tensor/param.h"

namespace tessera::parallel {

/// Returns the number of tiles of a parameter; 1 or less: it is not divided.
using TileCount = std::function<std::int64_t(const ParamInfo&)>;

/// Returns why a parameter cannot be divided, as the end of a sentence that begins with its name;
/// empty: it can.
std::string tile_obstacle(const ParamInfo& info);

/// Returns the tiles, at most `count`, in order: parameters of the same name and shape, each with a
/// box of rows. Boundaries are at multiples of kChunk elements, so that sums over chunks, such as
/// the norm of the gradient, are those of the undivided parameter. One tile means that it cannot be
/// divided further. `info`: a parameter of which this rank holds all.
nn::ParamInfos tiles_of(const std::shared_ptr<const ParamInfo>& info, std::int64_t count);
/// The same for all parameters of a block. `count`: empty if none is divided.
nn::ParamInfos in_tiles(const nn::ParamInfos& params, const TileCount& count);
/// True for a result of tiles_of() with several tiles.
bool is_tile(const ParamInfo& info);

}  // namespace tessera::parallel
