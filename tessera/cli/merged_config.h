// SPDX-License-Identifier: Apache-2.0
// Two configuration files of one training: a file of tessera, and DeepSpeed's file of --deepspeed.
#pragma once

#include <string>

#include "tessera/config/json.h"
#include "tessera/interop/foreign_flags.h"

namespace tessera::cli {

/// Returns the keys of both configurations, in current names. "auto" gives way to a value. Throws
/// Error{Config} that lists every key to which both give a value, if the values differ, with both
/// places.
json::Value merged_configs(json::Value first, json::Value second);

/// Reads the configuration of a command line: `named`, the file of --deepspeed, or both merged. One
/// of the two must be given (config_of()).
json::Value read_configs(const std::string& named, const interop::ForeignFlags& flags);

}  // namespace tessera::cli
