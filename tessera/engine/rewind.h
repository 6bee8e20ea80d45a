// SPDX-License-Identifier: Apache-2.0
// The error with which a step ends a training that shall go on from an earlier checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/engine/run_folder.h"

namespace tessera::engine {

/// Thrown by Engine::train_step() on every rank. The engine cannot continue; a new one can, from
/// the checkpoint that prepare() returns. A program that catches only Error gets `error`.
class Rewind : public Error {
 public:
  using Prepare = std::function<std::filesystem::path(comm::World&, const RunFolder&)>;
  Rewind(Error error, Prepare prepare) : Error(std::move(error)), prepare_(std::move(prepare)) {}

  /// Prepares the folder to continue from an earlier checkpoint, and returns that checkpoint.
  /// Throws the error if there is none, and Error{Io}. Collective; no engine of the run may exist.
  [[nodiscard]] std::filesystem::path prepare(comm::World& world, const RunFolder& folder) const {
    return prepare_(world, folder);
  }

 private:
  Prepare prepare_;
};

}  // namespace tessera::engine
