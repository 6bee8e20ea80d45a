// SPDX-License-Identifier: Apache-2.0
// Writes a model as a GGUF file, version 3, for llama.cpp and related programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/interop/gguf/blocks.h"
#include "tessera/interop/gguf/tokenizer.h"

namespace tessera::interop {

/// A key that is true in files written here, so that a later conversion may replace them.
inline constexpr std::string_view kGgufMark = "tessera.converted";

/// The complete layout of a file to write.
struct GgufPlan {
  struct Tensor {
    std::string name;  ///< name in the file
    GgmlType type = GgmlType::F32;
    checkpoint::StreamedTensor data;  ///< rows are in the file's order
    std::uint64_t offset = 0, bytes = 0;
  };
  std::string header;  ///< everything before the first tensor, padded
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;  ///< of all tensors, with the padding between them
};

/// Lays out the model of `tensors` and `files` (config.json, the tokenizer's files), which have
/// Hugging Face's names. Matrices are written as `type` (F32, F16, BF16 or Q8_0), by default in the
/// dtype of the token table; vectors and the table of positions as F32; a matrix whose rows are not
/// divisible into Q8_0 blocks as F16. No weights are read. Throws Error{Unsupported} for a model or
/// tokenizer that GGUF cannot represent, and Error{Format} for a config.json that lacks a key.
GgufPlan plan_gguf(const std::vector<checkpoint::StreamedTensor>& tensors,
                   const FilesBeside& files,
                   std::optional<GgmlType> type);

/// Writes and syncs the file; `plan.bytes` are reported to `written` in total. Memory: pieces of 1
/// MiB, and what the tensors' reads need. Throws Error{Io}, and Error{Unsupported} with the tensor
/// for a number that the type cannot represent.
void write_gguf(
    const std::filesystem::path& path,
    const GgufPlan& plan,
    const checkpoint::Written& written = [](std::uint64_t) {});

}  // namespace tessera::interop
