// SPDX-License-Identifier: Apache-2.0
// Writes weights as others read them: safetensors in shards of a size, or a file of torch.save.
// Bytes: docs/formats/torch.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::interop {

/// `folder`/model.safetensors, or where that would be larger than `shard_bytes`,
/// model-00001-of-0000N.safetensors (a tensor is never cut) and model.safetensors.index.json.
/// Aliases are not written: `__metadata__` says {alias: name}, as safetensors' own save_model does.
/// Memory: one piece of 16 MiB and what `read` needs. Error{Io}.
void write_hf_weights(
    const std::filesystem::path& folder,
    const std::vector<checkpoint::StreamedTensor>& tensors,
    std::uint64_t shard_bytes,
    const checkpoint::Written& written = [](std::uint64_t) {});

/// A zip file that torch.load(weights_only=True) reads: an OrderedDict of tensors, an alias sharing
/// the storage of its tensor. Memory as above. Error{Unsupported} for element types that torch's
/// storages lack (U16, U32, U64), before anything is written.
void write_torch_weights(
    const std::filesystem::path& path,
    const std::vector<checkpoint::StreamedTensor>& tensors,
    const checkpoint::Written& written = [](std::uint64_t) {});

}  // namespace tessera::interop
