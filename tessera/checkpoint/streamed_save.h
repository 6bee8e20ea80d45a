// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint from tensors that are produced while they are written.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::checkpoint {

/// Writes one shard and the manifest into `folder`, which exists and is empty; the caller renames
/// it afterwards. Memory: 16 MiB and what the tensors' `read` needs. Throws Error{Io}.
void write_checkpoint(
    const std::filesystem::path& folder,
    const Meta& meta,
    const std::vector<StreamedTensor>& tensors,
    const Written& written = [](std::uint64_t) {});

/// Returns all tensors of a checkpoint, regardless of the layout that wrote it. They keep it open.
std::vector<StreamedTensor> tensors_of(const std::shared_ptr<const Checkpoint>& checkpoint);

}  // namespace tessera::checkpoint
