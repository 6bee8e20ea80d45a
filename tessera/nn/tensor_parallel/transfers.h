// SPDX-License-Identifier: Apache-2.0
// Helpers for communication in this folder. The headers are heavy, so only .cpp files include this
// one.
#pragma once

#include <utility>

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

/// Posts the sum of x over a group on meta tensors, where it needs no memory: the world of meta
/// tensors (comm/transports/shapes.h) counts it.
inline void post_shape_of_sum(const at::Tensor& x,
                              comm::World& world,
                              const comm::Group& group,
                              comm::CallSite where) {
  const DType dtype = x.scalar_type() == at::kHalf ? DType::F32 : from_torch(x.scalar_type());
  const comm::Span span = {nullptr, static_cast<std::size_t>(x.numel()), dtype, {}};
  finish(world.transport().all_reduce(group, span, comm::Op::Sum, std::move(where)));
}

}  // namespace tessera::nn::detail
