// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of decoders with RMS norms, rotary positions and a gated MLP (Llama and
// its kin).
#pragma once

#include <filesystem>

#include "tessera/interop/formats/foreign.h"
#include "tessera/interop/formats/megatron_reader.h"

namespace tessera::interop::megatron {

/// Whether the arguments in the file ask for such a model.
bool is_rotary(const Reader& reader);
/// Reads it. Error{Unsupported} for what no family computes, Error{Format} for damage.
Foreign read_rotary(const std::filesystem::path& path);

}  // namespace tessera::interop::megatron
