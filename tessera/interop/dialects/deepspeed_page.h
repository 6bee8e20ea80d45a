// SPDX-License-Identifier: Apache-2.0
// The tables of docs/deepspeed.md.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/document.h"

namespace tessera::interop {

/// Returns Markdown tables of DeepSpeed's keys: default, treatment and reason. `keys` documents the
/// keys that the options read.
std::string deepspeed_markdown(const std::vector<config::KeyDoc>& keys);

}  // namespace tessera::interop
