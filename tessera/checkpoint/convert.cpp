// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/convert.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::checkpoint {
namespace {

struct F64 {
  using Stored = double;
  static double load(double v) { return v; }
  static double store(double v) { return v; }
};
struct F32 {
  using Stored = float;
  static float load(float v) { return v; }
  static float store(double v) { return static_cast<float>(v); }
};

/// Converts to float with rounding to odd: an inexact result has its last bit set, so that rounding
/// it again to 16 bits equals rounding the double once. Source: Boldo and Melquiond 2008,
/// "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd".
float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(near) == value) return near;
  std::uint32_t bits;
  std::memcpy(&bits, &near, 4);
  if (bits & 1U) return near;
  const bool above = std::fabs(static_cast<double>(near)) > std::fabs(value);
  return std::nextafter(near,
                        above ? 0.0F : std::copysign(std::numeric_limits<float>::infinity(), near));
}

struct BF16 {
  using Stored = std::uint16_t;
  static float load(std::uint16_t v) { return from_bf16(v); }
  static std::uint16_t store(float v) { return to_bf16(v); }
  static std::uint16_t store(double v) { return to_bf16(round_to_odd(v)); }
};
struct F16 {
  using Stored = std::uint16_t;
  static float load(std::uint16_t v) { return from_fp16(v); }
  static std::uint16_t store(float v) { return to_fp16(v); }
  static std::uint16_t store(double v) { return to_fp16(round_to_odd(v)); }
};

template <class From, class To>
void each(const std::byte* in, std::byte* out, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    typename From::Stored value;
    std::memcpy(&value, in + i * static_cast<std::int64_t>(sizeof(value)), sizeof(value));
    const typename To::Stored result = To::store(From::load(value));
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(result)), &result, sizeof(result));
  }
}

template <class From>
void from(const std::byte* in, DType to, std::byte* out, std::int64_t count) noexcept {
  switch (to) {
    case DType::F64:
      return each<From, F64>(in, out, count);
    case DType::F32:
      return each<From, F32>(in, out, count);
    case DType::BF16:
      return each<From, BF16>(in, out, count);
    case DType::F16:
      return each<From, F16>(in, out, count);
    default:
      return;
  }
}

bool floats(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

}  // namespace

bool convertible(DType from, DType to) noexcept {
  return from == to || (floats(from) && floats(to));
}

void convert(
    DType from_dtype, const std::byte* in, DType to, std::byte* out, std::int64_t count) noexcept {
  if (from_dtype == to) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * size_of(to));
    return;
  }
  switch (from_dtype) {
    case DType::F64:
      return from<F64>(in, to, out, count);
    case DType::F32:
      return from<F32>(in, to, out, count);
    case DType::BF16:
      return from<BF16>(in, to, out, count);
    case DType::F16:
      return from<F16>(in, to, out, count);
    default:
      return;
  }
}

}  // namespace tessera::checkpoint
