// SPDX-License-Identifier: Apache-2.0
// Converts tensors between the layouts of the same matrices in GGUF files and in Hugging Face's
// files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::interop {

/// The pairing of rows by rotary positions.
enum class RotaryRows : std::uint8_t {
  Halves,      ///< Hugging Face: rows i and i + K/2 of a head of K channels
  Neighbours,  ///< GGUF: rows 2i and 2i + 1
};

/// The tensor with the rows of each head in the order `to`. Its first dim must be a multiple of 2 *
/// heads. Memory: none; each row is one read.
checkpoint::StreamedTensor rotary_rows(const checkpoint::StreamedTensor& tensor,
                                       std::int64_t heads,
                                       RotaryRows to);

/// The order of the rows of queries, keys and values in one matrix.
enum class QkvRows : std::uint8_t {
  ByHead,  ///< Hugging Face: [head][query | key | value][channel]
  ByPart,  ///< GGUF: [query | key | value][head][channel]
};

/// The tensor with its rows in the order `to`. Its first dim must be a multiple of 3 * heads.
/// Memory: none; each row is one read.
checkpoint::StreamedTensor qkv_rows(const checkpoint::StreamedTensor& tensor,
                                    std::int64_t heads,
                                    QkvRows to);

/// The tensor as fp32 with `by` added to each number.
checkpoint::StreamedTensor shifted(const checkpoint::StreamedTensor& tensor, float by);

/// Tensor `expert` of a stack [experts, ...].
checkpoint::StreamedTensor expert_of(const checkpoint::StreamedTensor& stack, std::int64_t expert);
/// The stack of tensors of the same shape and dtype. Memory: none.
checkpoint::StreamedTensor stacked(std::string name,
                                   std::vector<checkpoint::StreamedTensor> experts);

/// The transposed matrix. Memory: 64 rows of the result. Reads are serialized between threads.
checkpoint::StreamedTensor exchanged(const checkpoint::StreamedTensor& matrix);

}  // namespace tessera::interop
