// SPDX-License-Identifier: Apache-2.0
// The choice between kernels of attention on a GPU (run.attention_kernel).
#pragma once

#include <cstdint>

namespace tessera::ops {

enum class AttentionKernel : std::uint8_t {
  Deterministic,  ///< a kernel whose gradients have the same bits in every run
  Fastest         ///< the one that was fastest when a shape was first seen
};

/// Sets the choice of this process; a rank does so before its first tensor. It has no effect on a
/// CPU, where there is one kernel. Threads: one at a time, before kernels run.
void set_attention_kernel(AttentionKernel kernel);
AttentionKernel attention_kernel();

}  // namespace tessera::ops
