// SPDX-License-Identifier: Apache-2.0
// Tools of this folder's transfers; heavy headers, for .cpp files only.
#pragma once

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/step_context.h"
#include "tessera/tensor/span.h"

namespace tessera::nn::detail {

/// Of the caller.
inline comm::CallSite site(const StepContext& context,
                           const char* what,
                           Where here = Where::here()) {
  return {here.file, here.line, fmt::format("{} of {}", what, context.block_name)};
}

inline void finish(const comm::WorkPtr& work) {
  work->wait();
  work->wait_reusable();
}

/// Sums are made in fp32 and rounded once; there is none over fp16, which travels as fp32.
inline at::Tensor reducible(const at::Tensor& x) {
  const at::Tensor plain = x.contiguous();
  return plain.scalar_type() == at::kHalf ? plain.to(at::kFloat) : plain;
}

}  // namespace tessera::nn::detail
