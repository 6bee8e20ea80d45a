// SPDX-License-Identifier: Apache-2.0
// What a head needs that reads one token of each sample.
#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {

at::Tensor select_tokens(const at::Tensor& x_BTC,
                         const at::Tensor& positions_B,
                         StepContext& context) {
  TESSERA_REQUIRE(
      !context.shares_tokens() && !context.cuts_tokens(),
      Unsupported,
      fmt::format("block {} reads one token of each sample, which ranks that share the tokens do "
                  "not all have",
                  context.block_name),
      "set parallel.context.size to 1 and parallel.sequence to false");
  at::Tensor own_B = positions_B;
  if (context.on_grid()) {
    const grid::Range samples =
        grid::own_samples(positions_B.size(0), grid::stream(context.tensor->mode), *context.tensor);
    own_B = positions_B.narrow(0, samples.begin, samples.count);
  }
  TESSERA_REQUIRE(own_B.dim() == 1 && x_BTC.dim() == 3 && own_B.size(0) == x_BTC.size(0),
                  Shape,
                  fmt::format("block {}: positions of {} samples, hidden states of {}",
                              context.block_name,
                              own_B.numel(),
                              x_BTC.size(0)),
                  "give the position of one token for each sample");
  return x_BTC.gather(1, own_B.view({-1, 1, 1}).expand({-1, 1, x_BTC.size(2)}));
}

at::Tensor gather_flow(const at::Tensor& x, StepContext& context) {
  return context.on_grid() ? grid::gather_flow(x, context) : x;
}

}  // namespace tessera::nn
