// SPDX-License-Identifier: Apache-2.0
// The training on one rank that a layout must equal, and how exactly.
#pragma once

#include <string>

#include "tessera/config/json.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {

/// How near a layout stays to one rank with the same micro-batches and one thread each. Numbers are
/// relative: of a tensor's gradient in the Frobenius norm, of the loss of a step. Source:
/// docs/parallelism.md.
struct Promise {
  bool bits = true;       ///< every bit, of the weights after any step too
  double gradient = 0.0;  ///< of the first gradient
  double loss = 0.0;      ///< of the first ten steps
  std::string why;        ///< what rounds elsewhere; empty where nothing does
};
/// Error{Unsupported} for a layout that promises nothing: ranks that exchange compressed gradients.
Promise promise_of(const Plan& plan);

/// The resolved configuration of the same training on one rank: the same global batch in the same
/// micro-batches, nothing sharded.
json::Value on_one_rank(const Plan& plan);
/// A resolved configuration whose first update leaves the gradient itself, unclipped and not
/// scaled, in the optimizer's state kGradientState and changes no weight.
json::Value keeping_gradient(json::Value resolved);
inline constexpr const char* kGradientState = "momentum_buffer";

}  // namespace tessera::planner
