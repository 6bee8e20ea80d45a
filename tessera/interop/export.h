// SPDX-License-Identifier: Apache-2.0
// Writes weights in formats that other programs read: safetensors with shards of a given size, or a
// torch.save file. Byte layout: docs/formats/torch.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::interop {

/// Writes `folder`/model.safetensors or, if that would be larger than `shard_bytes`,
/// model-00001-of-0000N.safetensors (a tensor is never split) and model.safetensors.index.json.
/// Aliases are not written: `__metadata__` has {alias: name}, as safetensors' save_model writes it.
/// Memory: one piece of 16 MiB and what `read` needs. Throws Error{Io}.
void write_hf_weights(
    const std::filesystem::path& folder,
    const std::vector<checkpoint::StreamedTensor>& tensors,
    std::uint64_t shard_bytes,
    const checkpoint::Written& written = [](std::uint64_t) {});

/// Writes a zip file that torch.load(weights_only=True) reads: an OrderedDict of tensors, in which
/// an alias shares the storage of its tensor. Memory as above. Throws Error{Unsupported}, before
/// anything is written, for element types that torch's storages lack (U16, U32, U64).
void write_torch_weights(
    const std::filesystem::path& path,
    const std::vector<checkpoint::StreamedTensor>& tensors,
    const checkpoint::Written& written = [](std::uint64_t) {});

}  // namespace tessera::interop
