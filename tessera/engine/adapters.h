// SPDX-License-Identifier: Apache-2.0
// Several adapters in one model that is only read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/engine/open_model.h"

namespace tessera::engine {

struct AdapterName {
  std::string name;            ///< differs from the others'
  std::filesystem::path path;  ///< a run, a checkpoint or a PEFT folder
};

/// Adds adapters to a found model, their base; call before the weights are loaded. A sample uses
/// the one whose number in `adapters` the batch's tensor nn::kAdapterNumber names. The base is held
/// once. Throws Error{Config} if two have a name, Error{Format} if a run's adapter was trained on
/// another base, Error{Unsupported} for adapters that replace parameters of the base, and the
/// errors of interop::open_saved_adapter() and models::find_adapter().
void add_adapters(OpenModel& model, const std::vector<AdapterName>& adapters);

}  // namespace tessera::engine
