// SPDX-License-Identifier: Apache-2.0
// Exports the adapter of a run, a checkpoint or a PEFT folder in PEFT's format.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/config/json.h"
#include "tessera/models/adapter.h"

namespace tessera::interop {

struct AdapterExport {
  models::Adapter adapter;
  std::string base;    ///< name of the base; empty: the checkpoint contains it
  json::Value config;  ///< adapter_config.json
  std::vector<checkpoint::StreamedTensor> tensors;
};

/// Reads no values until they are requested. Throws Error{Config} if there is no adapter; other
/// errors as models::open_model_source.
AdapterExport open_adapter_export(const std::filesystem::path& source);

}  // namespace tessera::interop
