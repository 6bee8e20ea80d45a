// SPDX-License-Identifier: Apache-2.0
// The single-rank training that a layout must reproduce, and the promised accuracy.
#pragma once

#include <string>

#include "tessera/config/json.h"

namespace tessera::planner {
class Plan;
}

namespace tessera::engine {

/// The closeness with which a layout matches one rank with the same micro-batches and one thread
/// each. Numbers are relative: for a tensor's gradient in the Frobenius norm, and for the loss of a
/// step. Source: docs/parallelism.md.
struct Promise {
  bool bits = true;  ///< every bit, also of the weights after any step
  /// Bounds of the first gradient and of the losses of the first ten steps, for models whose sums
  /// are well conditioned. How much rounding a model amplifies is measured
  /// (engine::rounding_bounds), and may raise them.
  double gradient = 0.0, loss = 0.0;
  /// The distance from 1 to the next number in the narrowest dtype in which values are rounded.
  double spacing = 0.0;
  std::string why;  ///< what is rounded differently; empty if nothing is
};
/// Throws Error{Unsupported} for a layout without a promise: ranks that exchange compressed
/// gradients.
Promise promise_of(const planner::Plan& plan);

/// The resolved configuration of the same training on one rank: the same global batch in the same
/// micro-batches, without sharding.
json::Value on_one_rank(const planner::Plan& plan);
/// A resolved configuration whose first update stores the unclipped and unscaled gradient in the
/// optimizer state kGradientState and changes no weight.
json::Value keeping_gradient(json::Value resolved);
inline constexpr const char* kGradientState = "momentum_buffer";

}  // namespace tessera::engine
