// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/mxfp4.h"

namespace tessera::interop {
namespace {

using Bytes = const std::uint8_t*;

constexpr std::int64_t kSmall = 32;   ///< elements of a block with one scale
constexpr std::int64_t kLarge = 256;  ///< elements of a block whose parts have their own scales

float half_at(Bytes at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return from_fp16(bits);
}

unsigned low(std::uint8_t byte) {
  return byte & 0x0FU;
}
unsigned high(std::uint8_t byte) {
  return static_cast<unsigned>(byte) >> 4;
}

/// Four bits per element; the first half of the block is in the low nibbles.
void decode_q4(Bytes block, bool with_minimum, float* out) {
  const float scale = half_at(block);
  const Bytes q = block + (with_minimum ? 4 : 2);
  const float minimum = with_minimum ? half_at(block + 2) : 0.0F;
  const auto value = [&](unsigned bits) {
    if (with_minimum) return scale * static_cast<float>(bits) + minimum;
    return scale * static_cast<float>(static_cast<int>(bits) - 8);
  };
  for (std::int64_t j = 0; j < kSmall / 2; ++j) {
    out[j] = value(low(q[j]));
    out[j + kSmall / 2] = value(high(q[j]));
  }
}

/// Decodes Q5_0 and Q5_1 blocks. They are laid out as Q4 blocks, and the fifth bit of element j is
/// bit j of a 32-bit word.
void decode_q5(Bytes block, bool with_minimum, float* out) {
  const float scale = half_at(block);
  const Bytes q = block + (with_minimum ? 8 : 6);
  const float minimum = with_minimum ? half_at(block + 2) : 0.0F;
  std::uint32_t fifth = 0;
  std::memcpy(&fifth, q - 4, sizeof(fifth));
  const auto value = [&](unsigned bits, std::int64_t element) {
    const unsigned whole = bits | (fifth >> element & 1U) << 4;
    if (with_minimum) return scale * static_cast<float>(whole) + minimum;
    return scale * static_cast<float>(static_cast<int>(whole) - 16);
  };
  for (std::int64_t j = 0; j < kSmall / 2; ++j) {
    out[j] = value(low(q[j]), j);
    out[j + kSmall / 2] = value(high(q[j]), j + kSmall / 2);
  }
}

void decode_q8(Bytes block, float* out) {
  const float scale = half_at(block);
  for (std::int64_t j = 0; j < kSmall; ++j)
    out[j] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + j]));
}

/// A power of two, then four bits per element as in decode_q4().
void decode_mxfp4(Bytes block, float* out) {
  const Bytes q = block + 1;
  const int exponent = static_cast<int>(block[0]) - kMxfp4Bias;
  for (std::int64_t j = 0; j < kSmall / 2; ++j) {
    out[j] = std::ldexp(kMxfp4Values[low(q[j])], exponent);
    out[j + kSmall / 2] = std::ldexp(kMxfp4Values[high(q[j])], exponent);
  }
}

/// The six bits of scale and minimum of part `j` of eight, packed in twelve bytes.
std::pair<unsigned, unsigned> scale_and_minimum(Bytes packed, std::size_t j) {
  if (j < 4) return {packed[j] & 0x3FU, packed[j + 4] & 0x3FU};
  return {low(packed[j + 4]) | (static_cast<unsigned>(packed[j - 4]) >> 6) << 4,
          high(packed[j + 4]) | (static_cast<unsigned>(packed[j]) >> 6) << 4};
}

/// Q4_K and Q5_K: eight parts of 32; two parts share the nibbles of 32 bytes. `fifth` has bit j of
/// byte l for element l of part j, or is null.
void decode_parts(Bytes block, Bytes fifth, Bytes q, float* out) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (std::size_t j = 0; j < 8; ++j) {
    const auto [s, m] = scale_and_minimum(block + 4, j);
    const float part = scale * static_cast<float>(s), least = minimum * static_cast<float>(m);
    const Bytes bytes = q + j / 2 * 32;
    for (std::size_t l = 0; l < 32; ++l) {
      unsigned bits = j % 2 == 0 ? low(bytes[l]) : high(bytes[l]);
      if (fifth != nullptr) bits |= (static_cast<unsigned>(fifth[l]) >> j & 1U) << 4;
      out[j * 32 + l] = part * static_cast<float>(bits) - least;
    }
  }
}

/// Two halves of 128; 64 bytes of low nibbles and 32 bytes of upper pairs of bits each; a signed
/// scale for every 16 elements.
void decode_q6(Bytes block, float* out) {
  const Bytes scales = block + 192;
  const float scale = half_at(block + 208);
  for (std::size_t i = 0; i < static_cast<std::size_t>(kLarge); ++i) {
    const std::size_t half = i / 128, quarter = i % 128 / 32, l = i % 32;
    const std::uint8_t nibbles = block[half * 64 + quarter % 2 * 32 + l];
    const unsigned upper = static_cast<unsigned>(block[128 + half * 32 + l]) >> (2 * quarter) & 3U;
    const unsigned bits = (quarter < 2 ? low(nibbles) : high(nibbles)) | upper << 4;
    const float part = scale * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    out[i] = part * static_cast<float>(static_cast<int>(bits) - 32);
  }
}

void decode_block(GgmlType type, Bytes block, float* out) {
  switch (type) {
    case GgmlType::Q4_0:
      return decode_q4(block, false, out);
    case GgmlType::Q4_1:
      return decode_q4(block, true, out);
    case GgmlType::Q5_0:
      return decode_q5(block, false, out);
    case GgmlType::Q5_1:
      return decode_q5(block, true, out);
    case GgmlType::Q8_0:
      return decode_q8(block, out);
    case GgmlType::Q4_K:
      return decode_parts(block, nullptr, block + 16, out);
    case GgmlType::Q5_K:
      return decode_parts(block, block + 16, block + 48, out);
    case GgmlType::Q6_K:
      return decode_q6(block, out);
    case GgmlType::MXFP4:
      return decode_mxfp4(block, out);
    case GgmlType::F32:
      std::memcpy(out, block, sizeof(float));
      return;
    case GgmlType::F16:
      *out = half_at(block);
      return;
    case GgmlType::BF16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, block, sizeof(bits));
      *out = from_bf16(bits);
      return;
    }
  }
}

}  // namespace

std::optional<GgmlBlock> ggml_block(std::uint32_t type) {
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::F32:
      return GgmlBlock{"F32", 1, 4};
    case GgmlType::F16:
      return GgmlBlock{"F16", 1, 2};
    case GgmlType::BF16:
      return GgmlBlock{"BF16", 1, 2};
    case GgmlType::Q4_0:
      return GgmlBlock{"Q4_0", kSmall, 18};
    case GgmlType::Q4_1:
      return GgmlBlock{"Q4_1", kSmall, 20};
    case GgmlType::Q5_0:
      return GgmlBlock{"Q5_0", kSmall, 22};
    case GgmlType::Q5_1:
      return GgmlBlock{"Q5_1", kSmall, 24};
    case GgmlType::Q8_0:
      return GgmlBlock{"Q8_0", kQ8Elements, kQ8Bytes};
    case GgmlType::Q4_K:
      return GgmlBlock{"Q4_K", kLarge, 144};
    case GgmlType::Q5_K:
      return GgmlBlock{"Q5_K", kLarge, 176};
    case GgmlType::Q6_K:
      return GgmlBlock{"Q6_K", kLarge, 210};
    case GgmlType::MXFP4:
      return GgmlBlock{"MXFP4", kSmall, 17};
  }
  return std::nullopt;
}

GgmlBlock ggml_block(GgmlType type) {
  const auto found = ggml_block(static_cast<std::uint32_t>(type));
  TESSERA_ASSERT(found.has_value());
  return *found;
}

std::string ggml_type_name(std::uint32_t type) {
  if (const auto block = ggml_block(type)) return std::string(block->name);
  constexpr std::array<std::pair<std::uint32_t, std::string_view>, 22> kOthers = {
      {{9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
       {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
       {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
       {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
       {4, "Q4_2"},    {5, "Q4_3"}}};
  for (const auto& [number, name] : kOthers) {
    if (number == type) return std::string(name);
  }
  return fmt::format("type {}", type);
}

std::optional<DType> plain_type(GgmlType type) {
  if (type == GgmlType::F32) return DType::F32;
  if (type == GgmlType::F16) return DType::F16;
  return type == GgmlType::BF16 ? std::optional(DType::BF16) : std::nullopt;
}

void decode_blocks(
    GgmlType type, const std::byte* blocks, std::int64_t begin, std::int64_t end, float* out) {
  const GgmlBlock block = ggml_block(type);
  const auto at = [&](std::int64_t element) {
    return reinterpret_cast<Bytes>(blocks + element / block.elements * block.bytes);
  };
  std::array<float, kLarge> whole{};
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t inside = i % block.elements;
    const std::int64_t count = std::min(block.elements - inside, end - i);
    if (count == block.elements) {
      decode_block(type, at(i), out);
    } else {
      decode_block(type, at(i), whole.data());
      std::copy_n(whole.begin() + inside, count, out);
    }
    out += count;
    i += count;
  }
}

bool encode_q8_0(const float* in, std::int64_t count, std::byte* out) {
  TESSERA_ASSERT(count % kQ8Elements == 0);
  constexpr float kMaxHalf = 65504.0F;
  for (std::int64_t begin = 0; begin < count; begin += kQ8Elements) {
    float largest = 0;
    for (std::int64_t j = 0; j < kQ8Elements; ++j) {
      const float magnitude = std::fabs(in[begin + j]);
      if (!std::isfinite(magnitude)) return false;
      largest = std::max(largest, magnitude);
    }
    const float scale = largest / 127.0F;
    if (scale > kMaxHalf) return false;
    // The reciprocal of a subnormal scale may be infinite: all of the block is then zero in fp16.
    const float inverse = scale == 0 || !std::isfinite(1.0F / scale) ? 0.0F : 1.0F / scale;
    const std::uint16_t bits = to_fp16(scale);
    std::memcpy(out, &bits, sizeof(bits));
    for (std::int64_t j = 0; j < kQ8Elements; ++j)
      out[2 + j] =
          static_cast<std::byte>(static_cast<std::int8_t>(std::lround(in[begin + j] * inverse)));
    out += kQ8Bytes;
  }
  return true;
}

}  // namespace tessera::interop
