// SPDX-License-Identifier: Apache-2.0
// Errors that begin in a block: they name it, and tell a mistake in the block from one of ours.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"

namespace tessera::parallel {

/// Rethrows the exception that is being handled. Errors of the kinds Memory, Shape and Config get
/// the block's name if they lack it; exceptions of libtorch and std::logic_error (at() beyond the
/// end) become Error{Shape} with the shapes of `inputs`; all others stay as they are.
[[noreturn]] void rethrow_in_block(const std::string& block,
                                   const char* what,
                                   const std::vector<at::Tensor>& inputs = {});

/// Runs `fn`, which is `what` ("forward", "backward") of the block.
template <class Fn>
auto in_block(const std::string& block,
              const char* what,
              const std::vector<at::Tensor>& inputs,
              Fn fn) {
  try {
    return fn();
  } catch (...) {
    rethrow_in_block(block, what, inputs);
  }
}
template <class Fn>
auto in_block(const std::string& block, const char* what, Fn fn) {
  return in_block(block, what, {}, std::move(fn));
}

/// Error{Shape} for what a block may not return: an undefined tensor, a differentiable one that is
/// not of a floating type, a term of the loss that is not 0-d.
void check_outcome(const std::string& block, const nn::Outcome& outcome);

/// Error{Shape} unless each tensor that flows into the objective has one row for each of `samples`
/// samples, as Objective::samples_at_once() promises.
void check_rows(const std::string& block, const nn::Flow& flow, std::int64_t samples);

}  // namespace tessera::parallel
