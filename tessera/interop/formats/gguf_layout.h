// SPDX-License-Identifier: Apache-2.0
// Tensors in the layouts that GGUF files and Hugging Face give the same matrices.
#pragma once

#include <cstdint>

#include "tessera/checkpoint/streamed_tensor.h"

namespace tessera::interop {

/// Which partners rotary positions turn together.
enum class RotaryRows : std::uint8_t {
  Halves,      ///< Hugging Face: rows i and i + K/2 of a head of K channels
  Neighbours,  ///< GGUF: rows 2i and 2i + 1
};

/// The tensor with the rows of each of its heads in the other order, `to`. Its first dim is a
/// multiple of 2 * heads. Memory: none; each row is one read.
checkpoint::StreamedTensor rotary_rows(const checkpoint::StreamedTensor& tensor,
                                       std::int64_t heads,
                                       RotaryRows to);

/// The matrix with its dims exchanged. Memory: 64 rows of the result. Threads: reads wait for each
/// other.
checkpoint::StreamedTensor exchanged(const checkpoint::StreamedTensor& matrix);

}  // namespace tessera::interop
