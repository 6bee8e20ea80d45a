// SPDX-License-Identifier: Apache-2.0
// A checkpoint of ours out of tensors that are made as they are written.
#pragma once

#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::checkpoint {

/// Writes one shard and the manifest into `folder`, which is there and empty; the caller gives it
/// its name once this returns. Memory: 16 MiB and what the tensors' `read` needs. Error{Io}.
void write_checkpoint(
    const std::filesystem::path& folder,
    const Meta& meta,
    const std::vector<StreamedTensor>& tensors,
    const Written& written = [](std::uint64_t) {});

/// All tensors of a checkpoint, whatever layout wrote it. They keep it open.
std::vector<StreamedTensor> tensors_of(const std::shared_ptr<const Checkpoint>& checkpoint);

}  // namespace tessera::checkpoint
