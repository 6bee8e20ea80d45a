// SPDX-License-Identifier: Apache-2.0
// Errors that originate in a block: they name the block and distinguish mistakes in a user's block
// from bugs in tessera.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/block.h"

namespace tessera::parallel {

/// Rethrows the current exception. Errors of the kinds Memory, Shape and Config get the block's
/// name if they lack it; exceptions of libtorch and std::logic_error (such as at() out of range)
/// become Error{Shape} with the shapes of `inputs`; all others are rethrown unchanged.
[[noreturn]] void rethrow_in_block(const std::string& block,
                                   const char* what,
                                   const std::vector<at::Tensor>& inputs = {});

/// Runs `fn`, which is the `what` ("forward", "backward") of the block.
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

/// Throws Error{Shape} if the outcome has an undefined tensor, a differentiable tensor of a
/// non-floating type, or a loss term that is not 0-d.
void check_outcome(const std::string& block, const nn::Outcome& outcome);

/// Throws Error{Shape} unless each tensor of the objective's input flow has one row per sample,
/// `samples` rows, as Objective::samples_at_once() promises.
void check_rows(const std::string& block, const nn::Flow& flow, std::int64_t samples);

}  // namespace tessera::parallel
