// SPDX-License-Identifier: Apache-2.0
// One rank's file of a Megatron-LM checkpoint and its position: its tensors by virtual stage,
// including the optimizer's under the names of their parameters.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop::megatron {

struct Place {
  int tensor = 0, pipeline = 0, expert = 0;
  auto operator<=>(const Place&) const = default;
};
/// The folder of the iteration: `path`, or the one that its tracker file names.
std::filesystem::path iteration_folder(const std::filesystem::path& path);
/// The files in an iteration's folder by rank; empty if it is not such a folder.
std::map<Place, std::filesystem::path> files_of(const std::filesystem::path& folder);
/// torch_dist, Megatron's newer format: shards of torch.distributed.checkpoint.
bool is_distributed(const std::filesystem::path& folder);

/// The tensors of a virtual stage by kind: kWeights (as the model computes), kMasters (fp32; absent
/// in fp32), "exp_avg", ...
using Stage = std::map<std::string, Named, std::less<>>;
inline constexpr const char* kWeights = "weights";
inline constexpr const char* kMasters = "masters";

struct Part {
  std::filesystem::path path;
  json::Value values;
  std::vector<Stage> stages;  ///< one if there are no virtual stages
  /// The reason why the optimizer's state could not be read; empty if it was.
  std::string without_state;
  std::vector<std::string> moments;  ///< names that every stage has
  /// Number of updates; absent if the optimizer does not store it.
  std::optional<std::int64_t> updates;
  std::optional<double> lr;  ///< learning rate of the next update
  json::Value loss_scaler;   ///< in the form of optim::LossScaler::restore()
};

/// Reads a file such as model_optim_rng.pt. Throws Error{Format} for damage; an optimizer with an
/// unknown layout sets `without_state` and is never an error.
Part read_part(const std::filesystem::path& file);

}  // namespace tessera::interop::megatron
