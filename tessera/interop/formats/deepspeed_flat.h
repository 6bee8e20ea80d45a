// SPDX-License-Identifier: Apache-2.0
// Where the parameters of DeepSpeed's stages 1 and 2 lie. A group is one flat tensor of its
// parameters, one after the other, padded at the end and cut into as many parts as there are ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/formats/deepspeed_states.h"

namespace tessera::interop::deepspeed {

/// The part of a group that one rank holds.
struct Part {
  const std::filesystem::path& file;  ///< the rank's optim_states
  const json::Value& values;          ///< what stands in it
  std::int64_t numel = 0;
};

/// Elements [begin, begin + count) of the part of `rank`.
struct Piece {
  std::size_t rank = 0;
  std::int64_t begin = 0, count = 0;
};

/// Whether param_slice_mappings of a training's optim_states tell the truth. Under
/// round_robin_gradients DeepSpeed flattens the parameters in one order, that of param_shapes, and
/// computes the mappings from another.
bool mappings_hold(const json::Value& model_states);

/// Of each parameter of group `number`, in their order, its pieces in theirs. With `mapped` the
/// mappings of each file that has them must say the same. Error{Format} with the file where parts
/// and parameters do not fit each other.
std::vector<std::vector<Piece>> pieces_of(const std::vector<Part>& parts,
                                          const std::vector<Parameter>& parameters,
                                          std::size_t number,
                                          bool mapped);

}  // namespace tessera::interop::deepspeed
