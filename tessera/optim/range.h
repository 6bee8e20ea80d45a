// SPDX-License-Identifier: Apache-2.0
// Functions that the updates of all rules share: the coefficients of a range, and its elements for
// the ops.
#pragma once

#include "tessera/ops/fused_rules.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {

/// Returns the learning rate of this range in this update.
inline double lr_of(const ShardView& view, const UpdateScalars& scalars) {
  return scalars.lr * view.lr_scale.value_or(1.0);
}
/// Returns the weight decay of this range; `own` is that of the rule.
inline double decay_of(const ShardView& view, const UpdateScalars& scalars, double own) {
  return view.decay ? view.weight_decay.value_or(own) * scalars.decay_scale : 0.0;
}
inline ops::RuleRange range_of(const ShardView& view, const UpdateScalars& scalars) {
  return {.master = view.master,
          .grad = view.grad,
          .working = view.working,
          .working_dtype = view.working_dtype,
          .numel = view.numel,
          .grad_scale = scalars.grad_scale,
          .device = view.device};
}
/// Returns the number of chunks of the range, as prepare() counts them.
inline std::int64_t chunks_of(const ShardView& view) {
  return (view.numel + ops::kRuleChunk - 1) / ops::kRuleChunk;
}

}  // namespace tessera::optim
