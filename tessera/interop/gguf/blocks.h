// SPDX-License-Identifier: Apache-2.0
// The element types of GGUF files: plain floats, and blocks of small integers with shared scales.
// Source: the type table of the GGUF specification, and the block formulas of ggml's quantization.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/dtype.h"

namespace tessera::interop {

/// The element types that can be read, with the numbers used in files.
enum class GgmlType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
  MXFP4 = 39,
};

/// Elements and bytes of one block; a plain float is a block of one element.
struct GgmlBlock {
  std::string_view name;
  std::int64_t elements = 1;
  std::int64_t bytes = 4;
};

/// The block of a type in a file; nothing for a type that cannot be read.
std::optional<GgmlBlock> ggml_block(std::uint32_t type);
GgmlBlock ggml_block(GgmlType type);
/// The name of any published type, "type 99" for others; for error messages.
std::string ggml_type_name(std::uint32_t type);
/// The type of single elements; nothing for blocks of integers.
std::optional<DType> plain_type(GgmlType type);

/// Decodes elements [begin, end) of a row of blocks that starts at `blocks`. Each value is rounded
/// once, as in the published fp32 formulas. Can be called from any thread.
void decode_blocks(
    GgmlType type, const std::byte* blocks, std::int64_t begin, std::int64_t end, float* out);

/// Elements and bytes of a Q8_0 block: a scale in fp16 and one signed byte per element.
inline constexpr std::int64_t kQ8Elements = 32, kQ8Bytes = 34;
/// Encodes `count` elements, a multiple of kQ8Elements: the scale is the largest magnitude / 127, a
/// byte is the quotient rounded to nearest, halves away from zero. Returns false for a block with a
/// non-finite number, or whose scale exceeds fp16; `out` is then incomplete.
bool encode_q8_0(const float* in, std::int64_t count, std::byte* out);

}  // namespace tessera::interop
