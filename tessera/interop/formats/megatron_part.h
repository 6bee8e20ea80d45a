// SPDX-License-Identifier: Apache-2.0
// One rank's file of a Megatron-LM checkpoint, and where it lies: its tensors by virtual stage, the
// optimizer's among them under the names of the parameters that they belong to.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/interop/formats/foreign.h"

namespace tessera::interop::megatron {

struct Place {
  int tensor = 0, pipeline = 0;
  auto operator<=>(const Place&) const = default;
};
/// The folder of the iteration: `path`, or the one that its tracker names.
std::filesystem::path iteration_folder(const std::filesystem::path& path);
/// The files of an iteration's folder by rank; none where it is no such folder.
std::map<Place, std::filesystem::path> files_of(const std::filesystem::path& folder);
/// torch_dist, Megatron's newer format: shards of torch.distributed.checkpoint.
bool is_distributed(const std::filesystem::path& folder);

/// What a virtual stage holds, by what it is of its parameters: kWeights (as the model computes),
/// kMasters (fp32; absent in fp32), "exp_avg", ...
using Stage = std::map<std::string, Named, std::less<>>;
inline constexpr const char* kWeights = "weights";
inline constexpr const char* kMasters = "masters";

struct Part {
  std::filesystem::path path;
  json::Value values;
  std::vector<Stage> stages;  ///< one without virtual stages
  /// Why the optimizer's state is not among them; empty where it is.
  std::string without_state;
  std::vector<std::string> moments;     ///< that every stage has
  std::optional<std::int64_t> updates;  ///< made; nothing if the optimizer does not say
  std::optional<double> lr;             ///< of the next update
  json::Value loss_scaler;              ///< as optim::LossScaler::restore() takes it
};

/// Reads a file of model_optim_rng.pt's kind. Error{Format} for damage; an optimizer whose layout
/// is not read is `without_state`, never an error.
Part read_part(const std::filesystem::path& file);

}  // namespace tessera::interop::megatron
