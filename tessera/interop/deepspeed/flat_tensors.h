// SPDX-License-Identifier: Apache-2.0
// The placement of parameters in DeepSpeed's stages 1 and 2. A group is one flat tensor of its
// parameters, one after the other, padded at the end and divided into one part per rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/deepspeed/states.h"

namespace tessera::interop::deepspeed {

/// The part of a group that one rank holds.
struct Part {
  const std::filesystem::path& file;  ///< the rank's optim_states
  const json::Value& values;          ///< the file's values
  std::int64_t numel = 0;
};

/// Elements [begin, begin + count) of the part of `rank`.
struct Piece {
  std::size_t rank = 0;
  std::int64_t begin = 0, count = 0;
};

/// True if param_slice_mappings in the optim_states can be trusted. With round_robin_gradients
/// DeepSpeed flattens the parameters in the order of param_shapes but computes the mappings from
/// another order.
bool mappings_hold(const json::Value& model_states);

/// The pieces of each parameter of group `number`, in order. With `mapped` the mappings of each
/// file that has them must agree. Throws Error{Format} with the file if parts and parameters are
/// inconsistent.
std::vector<std::vector<Piece>> pieces_of(const std::vector<Part>& parts,
                                          const std::vector<Parameter>& parameters,
                                          std::size_t number,
                                          bool mapped);

}  // namespace tessera::interop::deepspeed
