// SPDX-License-Identifier: Apache-2.0
// The adapter of a run, a checkpoint or a folder of PEFT's, as PEFT writes one.
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
  std::string base;    ///< as it is named; empty: the checkpoint holds it
  json::Value config;  ///< adapter_config.json
  std::vector<checkpoint::StreamedTensor> tensors;
};

/// No values are read before they are asked for. Error{Config} where no adapter is there; errors as
/// planner::open_model_source.
AdapterExport open_adapter_export(const std::filesystem::path& source);

}  // namespace tessera::interop
