// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of decoders with RMS norms, rotary positions and a gated MLP (Llama and
// similar families).
#pragma once

#include <filesystem>

#include "tessera/interop/foreign.h"
#include "tessera/interop/megatron/reader.h"

namespace tessera::interop::megatron {

/// True if the arguments in the file describe such a model.
bool is_rotary(const Reader& reader);
/// Reads it. Throws Error{Unsupported} for a model that no family computes, and Error{Format} for
/// damage.
Foreign read_rotary(const std::filesystem::path& path);

}  // namespace tessera::interop::megatron
