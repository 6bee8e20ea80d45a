// SPDX-License-Identifier: Apache-2.0
// A trained model for reading: a run, a checkpoint or a Hugging Face folder, on this process alone.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::engine {

/// Threads: one.
struct OpenModel {
  models::Resolved shape;
  data::TokenizerPtr tokenizer;
  std::optional<json::Value> config;  ///< of the run it came from
  std::filesystem::path source;       ///< the checkpoint or folder that was read
  std::unique_ptr<comm::World> world;
  std::unique_ptr<parallel::ModelInstance> model;
  std::unique_ptr<parallel::Executor> executor;
};

/// `threads`: 0 takes all usable cores. Error{Format} when there is nothing to open, or it is
/// damaged.
std::unique_ptr<OpenModel> open_model(const std::filesystem::path& path, int threads = 0);

}  // namespace tessera::engine
