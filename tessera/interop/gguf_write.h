// SPDX-License-Identifier: Apache-2.0
// Writes a model as a GGUF file, version 3, which llama.cpp and its kin load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"
#include "tessera/interop/formats/ggml_blocks.h"
#include "tessera/interop/formats/gguf_tokenizer.h"

namespace tessera::interop {

/// A key that is true in the files written here, so that a later conversion may replace them.
inline constexpr std::string_view kGgufMark = "tessera.converted";

/// A file that is ready to be written.
struct GgufPlan {
  struct Tensor {
    std::string name;  ///< of the file
    GgmlType type = GgmlType::F32;
    checkpoint::StreamedTensor data;  ///< rows in the file's order
    std::uint64_t offset = 0, bytes = 0;
  };
  std::string header;  ///< all before the first tensor, padded
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;  ///< of all tensors, with what lies between them
};

/// Lays out the model of `tensors` and `files` (config.json, the tokenizer's files), which have
/// Hugging Face's names. Matrices are written as `type` (F32, F16, BF16 or Q8_0), without one as
/// the token table is stored; vectors and the table of positions as F32; a matrix whose rows do not
/// divide into blocks of Q8_0 as F16. No weights are read. Error{Unsupported} for a model or
/// tokenizer that GGUF has no words for, Error{Format} for a config.json that lacks a key.
GgufPlan plan_gguf(const std::vector<checkpoint::StreamedTensor>& tensors,
                   const FilesBeside& files,
                   std::optional<GgmlType> type);

/// Writes and syncs the file; `written` is told of `plan.bytes` in all. Memory: pieces of 1 MiB,
/// and what the tensors' reads need. Error{Io}; Error{Unsupported} naming the tensor for a number
/// that the type has no room for.
void write_gguf(
    const std::filesystem::path& path,
    const GgufPlan& plan,
    const checkpoint::Written& written = [](std::uint64_t) {});

}  // namespace tessera::interop
