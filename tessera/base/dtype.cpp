// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/dtype.h"

#include <array>

namespace tessera {
namespace {

struct Row {
  std::string_view name;
  std::size_t size;
};
// In the order of the DType enumerators.
constexpr std::array<Row, 13> kRows = {{{"F64", 8},
                                        {"F32", 4},
                                        {"F16", 2},
                                        {"BF16", 2},
                                        {"I64", 8},
                                        {"I32", 4},
                                        {"I16", 2},
                                        {"I8", 1},
                                        {"U64", 8},
                                        {"U32", 4},
                                        {"U16", 2},
                                        {"U8", 1},
                                        {"BOOL", 1}}};

// Shifts the 24-bit fp32 significand `mantissa` right by `shift` bits, rounding to nearest, ties to
// even.
std::uint32_t round_shift(std::uint32_t mantissa, int shift) noexcept {
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
  const std::uint32_t out = mantissa >> shift;
  return out + ((rest > half || (rest == half && (out & 1U) != 0)) ? 1U : 0U);
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)].size;
}
std::string_view name(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string_view name(DeviceKind kind) noexcept {
  constexpr std::array<std::string_view, 4> kNames = {"cpu", "cuda", "plugin", "meta"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_text(Device device) {
  const bool single = device.kind == DeviceKind::Cpu || device.kind == DeviceKind::Meta;
  return std::string(name(device.kind)) + (single ? "" : ":" + std::to_string(device.index));
}

std::uint16_t to_fp16(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + 15;
  if (exponent >= 31) return static_cast<std::uint16_t>(sign | 0x7c00U);
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  if (exponent <= 0) {
    // Subnormal: the significand is shifted right instead of lowering the exponent; below 2^-25 the
    // result is 0.
    const int shift = 14 - exponent;
    if (shift > 24) return static_cast<std::uint16_t>(sign);
    return static_cast<std::uint16_t>(sign | round_shift(mantissa, shift));
  }
  // A carry out of the significand raises the exponent, up to infinity; this is the correct
  // rounding.
  const std::uint32_t rounded = round_shift(mantissa, 13) - 0x400U;
  return static_cast<std::uint16_t>(sign |
                                    ((static_cast<std::uint32_t>(exponent) << 10) + rounded));
}

float from_fp16(std::uint16_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
  const std::uint32_t exponent = (value >> 10) & 0x1fU;
  std::uint32_t mantissa = value & 0x3ffU;
  std::uint32_t bits = sign;
  if (exponent == 31) {
    bits |= 0x7f800000U | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0U);
  } else if (exponent != 0) {
    bits |= ((exponent + 127 - 15) << 23) | (mantissa << 13);
  } else if (mantissa != 0) {
    std::uint32_t shift = 0;
    while ((mantissa & 0x400U) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    bits |= ((127 - 15 + 1 - shift) << 23) | ((mantissa & 0x3ffU) << 13);
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

}  // namespace tessera
