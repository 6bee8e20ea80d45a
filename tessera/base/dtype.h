// SPDX-License-Identifier: Apache-2.0
// Element types, their names in files, and the conversions between fp32 and the 16-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, Bool };

/// Bytes of one element.
std::size_t size_of(DType dtype) noexcept;
/// The name that safetensors uses: "F32", "BF16", ...
std::string_view name(DType dtype) noexcept;
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Plugin: a device whose libtorch backend is registered at run time (PrivateUse1).
enum class DeviceKind : std::uint8_t { Cpu, Cuda, Plugin, Meta };
struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
/// "cpu", "cuda", "plugin", "meta".
std::string_view name(DeviceKind kind) noexcept;
/// "cuda:1"; without the index for a kind with a single memory.
std::string to_text(Device device);

/// Converts to bfloat16: round to nearest, ties to even; NaN stays NaN.
inline std::uint16_t to_bf16(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
inline float from_bf16(std::uint16_t value) noexcept {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
/// Converts to fp16: round to nearest, ties to even; from 65520 on the result is infinite. A NaN
/// keeps its upper bits and becomes quiet, as the F16C instructions do.
std::uint16_t to_fp16(float value) noexcept;
float from_fp16(std::uint16_t value) noexcept;

}  // namespace tessera
