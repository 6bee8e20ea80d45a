// SPDX-License-Identifier: Apache-2.0
// Helpers for communication in this folder. The headers are heavy, so only .cpp files include this
// one.
#pragma once

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/step_context.h"
#include "tessera/tensor/span.h"

namespace tessera::nn::detail {

/// The call site of the caller.
inline comm::CallSite site(const StepContext& context,
                           const char* what,
                           Where here = Where::here()) {
  return {here.file, here.line, fmt::format("{} of {}", what, context.block_name)};
}

inline void finish(const comm::WorkPtr& work) {
  work->wait();
  work->wait_reusable();
}

/// Converts x to a dtype that ranks can sum: sums are computed in fp32 and rounded once; fp16 has
/// no such sum and is sent as fp32.
inline at::Tensor reducible(const at::Tensor& x) {
  const at::Tensor plain = x.contiguous();
  return plain.scalar_type() == at::kHalf ? plain.to(at::kFloat) : plain;
}

}  // namespace tessera::nn::detail
