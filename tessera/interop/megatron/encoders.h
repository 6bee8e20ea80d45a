// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of BertModel and T5Model: learned positions, layer norms before the
// branches of a layer, and biases.
#pragma once

#include <filesystem>

#include "tessera/interop/foreign.h"
#include "tessera/interop/megatron/reader.h"

namespace tessera::interop::megatron {

/// Reads a checkpoint of `kind`, Encoder or EncoderDecoder. Throws Error{Unsupported} for a model
/// that no family computes, and Error{Format} for damage.
Foreign read_encoder(const std::filesystem::path& path, ModelKind kind);

}  // namespace tessera::interop::megatron
