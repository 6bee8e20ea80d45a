// SPDX-License-Identifier: Apache-2.0
// A state of an optimizer as it is kept between updates: fp32, 16 bits, or eight bits by blocks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/base/quant_codes.h"
#include "tessera/optim/eight_bit.h"

namespace tessera::parallel {

/// Numbers of a state in eight bits that share a scale, as in bitsandbytes. A shard begins at a
/// multiple of 1024 elements, so that blocks are the same on any number of ranks.
inline constexpr std::int64_t kStateBlock = 256;

/// Bytes of a state of `numel` elements. `type`: of what is kept in no eight bits.
std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel);

/// Threads: the rank's own.
struct KeptState {
  at::Tensor values;  ///< [numel] fp32, bf16 or fp16; uint8 where it is in eight bits, then with:
  at::Tensor scales;  ///< fp32 [ceil(numel / kStateBlock)]
  const DynamicMap* map = nullptr;

  /// Returns zeros on `device`; states in eight bits are on the host.
  static KeptState zeros(optim::KeptIn kept_in,
                         DType type,
                         std::int64_t numel,
                         c10::Device device = c10::DeviceType::CPU);
  /// Whether fp32 is what is kept.
  [[nodiscard]] bool wide() const { return values.scalar_type() == at::kFloat; }
  /// As fp32: `values` itself where it is kept so, else a copy.
  [[nodiscard]] at::Tensor widened() const;
  /// Takes fp32 values. `again`: those that widened() gave, of this or another rank, come back as
  /// the same.
  void take(const at::Tensor& wide, bool again = false) const;
};

}  // namespace tessera::parallel
