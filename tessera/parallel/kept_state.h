// SPDX-License-Identifier: Apache-2.0
// A state of an optimizer as stored between updates: fp32, 16 bits, or eight bits by blocks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/base/quant_codes.h"
#include "tessera/optim/eight_bit.h"

namespace tessera::parallel {

/// Numbers of an eight-bit state that share a scale, as in bitsandbytes. A shard begins at a
/// multiple of 1024 elements, so that blocks are the same on any number of ranks.
inline constexpr std::int64_t kStateBlock = 256;

/// Returns the bytes of a state of `numel` elements. `type`: type of states that are not stored in
/// eight bits.
std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel);

/// Used only on the rank's own thread.
struct KeptState {
  at::Tensor values;  ///< [numel] fp32, bf16 or fp16; uint8 if stored in eight bits, then with:
  at::Tensor scales;  ///< fp32 [ceil(numel / kStateBlock)]
  const DynamicMap* map = nullptr;

  /// Returns zeros on `device`; states in eight bits are on the host.
  static KeptState zeros(optim::KeptIn kept_in,
                         DType type,
                         std::int64_t numel,
                         c10::Device device = c10::DeviceType::CPU);
  /// Returns whether the state is stored in fp32.
  [[nodiscard]] bool wide() const { return values.scalar_type() == at::kFloat; }
  /// Returns the state in fp32: `values` itself if it is fp32, else a copy.
  [[nodiscard]] at::Tensor widened() const;
  /// Stores fp32 values. `again`: values that widened() returned, on this or another rank, are
  /// stored exactly as before.
  void take(const at::Tensor& wide, bool again = false) const;
};

}  // namespace tessera::parallel
