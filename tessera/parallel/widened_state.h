// SPDX-License-Identifier: Apache-2.0
// States that rest in a tier in fewer bits, as the fp32 values of which checkpoints consist.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/base/byte_source.h"
#include "tessera/base/dtype.h"
#include "tessera/optim/eight_bit.h"

namespace tessera::parallel {

/// Alignment of the values of a KeptState, and of the scales behind values in eight or four bits.
inline constexpr std::int64_t kStateAlign = 64;
/// Returns the number of bytes up to the next multiple.
inline constexpr std::int64_t state_aligned(std::int64_t bytes) {
  return (bytes + kStateAlign - 1) / kStateAlign * kStateAlign;
}

/// Returns the values [first, first + count) of a state of `numel` values in fp32. `stored`: its
/// KeptState::bytes(). Memory: while it is read, the part that is asked for. Can be read from any
/// thread.
std::shared_ptr<const ByteSource> widened_state(std::shared_ptr<const ByteSource> stored,
                                                optim::KeptIn kept_in,
                                                DType type,
                                                std::int64_t numel,
                                                std::int64_t first,
                                                std::int64_t count);

}  // namespace tessera::parallel
