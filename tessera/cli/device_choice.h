// SPDX-License-Identifier: Apache-2.0
// The devices that a command line and its environment choose.
#pragma once

#include "tessera/cli/host_flags.h"
#include "tessera/config/json.h"

namespace tessera::cli {

/// Sets run.device from the variable DS_ACCELERATOR (cpu or cuda) unless the configuration or a
/// flag sets it. Slots of this host that a filter names, such as `--include localhost:1,3`, become
/// the visible GPUs of this process and its children (CUDA_VISIBLE_DEVICES), as in DeepSpeed.
/// Throws Error{Unsupported} for another accelerator.
void choose_devices(json::Value& source, const HostChoice& choice);

}  // namespace tessera::cli
