// SPDX-License-Identifier: Apache-2.0
// The shares of a micro-batch's tokens, which the ranks of a tensor-parallel group have in common,
// where experts are divided among these ranks too: each rank sends the tokens of its share.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/comm/transport.h"
#include "tessera/nn/step_context.h"

namespace tessera::nn {

/// True if tensor-parallel ranks are among those that divide the experts.
bool divides_tokens(const StepContext& context);

/// This rank's share of N tokens: neighbours, and the last ranks may have fewer or none.
struct TokenShare {
  const comm::Group* group = nullptr;
  std::int64_t tokens = 0;  ///< N
  [[nodiscard]] std::int64_t most() const { return (tokens + group->size() - 1) / group->size(); }
  [[nodiscard]] std::int64_t begin(int index) const { return std::min(tokens, index * most()); }
  /// [N, ...] -> the rows of this rank.
  [[nodiscard]] at::Tensor of(const at::Tensor& all) const {
    const std::int64_t first = begin(group->index);
    return all.narrow(0, first, begin(group->index + 1) - first);
  }
};

/// [N, C] -> the rows of this rank; the gradient is gathered from all ranks.
at::Tensor take_share(const at::Tensor& all_NC, const TokenShare& share, StepContext& context);
/// The rows of this rank -> [N, C] from all ranks, in order. The gradient is that of these rows,
/// because every rank has the whole gradient.
at::Tensor gather_shares(const at::Tensor& own_NC, const TokenShare& share, StepContext& context);

}  // namespace tessera::nn
