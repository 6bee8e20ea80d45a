// SPDX-License-Identifier: Apache-2.0
// Constants of Megatron's index file, shared by reader and writer. They are stored on disk and must
// not change. Byte layout: docs/formats/tokens.md.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::data::format {

inline constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 34;  ///< magic, version, dtype, sequences, documents

/// Codes 6 (float64) and 7 (float32) exist but are not used for tokens.
enum class Code : std::uint8_t {
  U8 = 1,
  I8 = 2,
  I16 = 3,
  I32 = 4,
  I64 = 5,
  F64 = 6,
  F32 = 7,
  U16 = 8
};

}  // namespace tessera::data::format
