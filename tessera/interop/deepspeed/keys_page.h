// SPDX-License-Identifier: Apache-2.0
// The tables of docs/coming_from/deepspeed.md.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/document.h"
#include "tessera/interop/deepspeed/keys.h"

namespace tessera::interop {

/// Returns Markdown tables of DeepSpeed's keys: default, treatment and reason. `keys` documents the
/// keys that the options read.
std::string deepspeed_markdown(const std::vector<config::KeyDoc>& keys);

/// Returns one paragraph for `tessera config explain`: how tessera treats the key, and why. Empty
/// for a section.
std::string explain_deepspeed_key(const DeepSpeedKey& key);

}  // namespace tessera::interop
