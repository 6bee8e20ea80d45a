// SPDX-License-Identifier: Apache-2.0
// The models of torchtitan, whose sizes are part of its Python sources: what a name and a flavor
// stand for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::interop::torchtitan {

/// The keys of the section model for a model ("qwen3") and a flavor of it ("0.6B"), trained with
/// sequences of that length; absent: it is not known here. Sizes as in the last version of
/// torchtitan with settings in TOML (February 2026).
std::optional<json::Value> model_of(std::string_view model,
                                    std::string_view flavor,
                                    std::int64_t sequence_length);
/// The flavors that are known: "llama3 (debugmodel, 8B, 70B, 405B), qwen3 (...)".
std::string known_flavors();

}  // namespace tessera::interop::torchtitan
