// SPDX-License-Identifier: Apache-2.0
// The adapter of a run, a checkpoint or a PEFT folder, without its base.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "tessera/models/adapter.h"
#include "tessera/models/family.h"

namespace tessera::interop {

struct SavedAdapter {
  models::AdapterOptions options;
  std::string base;         ///< name of the base; empty: the checkpoint contains it
  std::string fingerprint;  ///< models::fingerprint_of() the base; empty: any
  /// The values of models::Adapter::parameters of the adapter that the options describe. Can be
  /// used from any thread.
  std::function<models::WeightSource(const models::Adapter& adapter, const models::WeightMap& map)>
      weights;
};

/// Reads no values. The base of a PEFT folder need not exist. Throws Error{Config} if there is no
/// adapter; other errors as open_peft() and models::open_model_source().
SavedAdapter open_saved_adapter(const std::filesystem::path& path);

}  // namespace tessera::interop
