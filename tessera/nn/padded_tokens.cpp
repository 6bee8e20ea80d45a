// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/padded_tokens.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/nn/functional.h"

namespace tessera::nn {

at::Tensor whole_embedding(const at::Tensor& ids_BS, const Param& table, StepContext& context) {
  // embedding() gives each rank that splits the tokens an equal share of the ids.
  return embedding(
      context.cuts_tokens() ? ids_BS.repeat({1, context.tensor->group->size()}) : ids_BS,
      table,
      context);
}

at::Tensor take_tokens(const at::Tensor& x_BSC, const StepContext& context) {
  const std::vector<std::int64_t> parts = parts_of_sample(context);
  if (parts.empty()) return x_BSC;
  std::int64_t count = std::ssize(parts);
  if (context.shares_tokens()) count *= context.context_parallel->group->size();
  if (context.cuts_tokens()) count *= context.tensor->group->size();
  const std::int64_t tokens = x_BSC.size(1), each = (tokens + count - 1) / count;
  const at::Tensor padded = at::constant_pad_nd(x_BSC, {0, 0, 0, each * count - tokens});
  std::vector<at::Tensor> own;
  for (const std::int64_t part : parts)
    own.push_back(padded.narrow(1, part * each, each));
  return at::cat(own, 1);
}

}  // namespace tessera::nn
