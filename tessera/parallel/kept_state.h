// SPDX-License-Identifier: Apache-2.0
// Values of an optimizer as stored between updates: fp32, 16 bits, or eight or four bits by blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/base/four_bit_codes.h"
#include "tessera/base/quant_codes.h"
#include "tessera/optim/eight_bit.h"

namespace tessera::parallel {

/// Numbers of an eight-bit state that share a scale, as in bitsandbytes. A shard begins at a
/// multiple of 1024 elements, so that blocks are the same on any number of ranks.
inline constexpr std::int64_t kStateBlock = 256;
/// The same for a state in four bits, as in torchao.
inline constexpr std::int64_t kFourBitStateBlock = 128;

/// Returns the bytes of a state of `numel` elements. `type`: type of states that are not stored in
/// eight or four bits.
std::int64_t kept_bytes(optim::KeptIn kept_in, DType type, std::int64_t numel);

/// A handle to the values: copies share their memory. The values are in memory of their own, in
/// that of another owner, or, if they rest in a tier, in memory that is attached while they are
/// leased (ShardStore::Lease); only then may they be used. Used only on the rank's own thread.
class KeptState {
 public:
  KeptState() = default;
  /// Returns zeros on `device`.
  static KeptState zeros(optim::KeptIn kept_in,
                         DType type,
                         std::int64_t numel,
                         c10::Device device = c10::DeviceType::CPU);
  /// Returns values that have memory only while it is attached.
  static KeptState resting(optim::KeptIn kept_in, DType type, std::int64_t numel);
  /// Returns values in the memory of `values`: fp32, bf16 or fp16.
  static KeptState over(at::Tensor values);

  [[nodiscard]] bool defined() const { return numel_ >= 0; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  /// Returns whether the values are stored in fp32.
  [[nodiscard]] bool wide() const { return type_ == DType::F32; }
  /// Returns whether the values can be used now.
  [[nodiscard]] bool in_memory() const { return values_.defined(); }

  /// The values as stored: [numel] fp32, bf16 or fp16, or uint8 codes (of four bits: [numel / 2]).
  [[nodiscard]] const at::Tensor& stored() const;
  /// The values, if they are stored in fp32.
  [[nodiscard]] float* floats() const;
  /// Returns the values in fp32: stored() itself if it is fp32, else a copy.
  [[nodiscard]] at::Tensor widened() const;
  /// Stores fp32 values. `again`: values that widened() returned, on this or another rank, are
  /// stored exactly as before.
  void take(const at::Tensor& wide, bool again = false) const;

  /// The bytes that attach() needs.
  [[nodiscard]] std::int64_t bytes() const;
  /// Lets resting values be in `memory`, aligned to 64 bytes, until detach(). They are zero if the
  /// memory is.
  void attach(std::span<std::byte> memory);
  void detach();

 private:
  KeptState(optim::KeptIn kept_in, DType type, std::int64_t numel);
  [[nodiscard]] bool has_scales() const { return map_ != nullptr || four_bits_ != nullptr; }
  [[nodiscard]] std::int64_t num_stored() const;  ///< elements of values_
  [[nodiscard]] std::int64_t num_scales() const;

  std::int64_t numel_ = -1;
  DType type_ = DType::F32;
  const DynamicMap* map_ = nullptr;        ///< of values in eight bits
  const FourBitMap* four_bits_ = nullptr;  ///< of values in four bits
  at::Tensor values_;
  at::Tensor scales_;  ///< of values in eight or four bits: fp32, one for each block
};

}  // namespace tessera::parallel
