// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention_sinks.h"

#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {

AttentionOut with_sinks(const AttentionOut& keys, const at::Tensor& sinks_H) {
  TESSERA_REQUIRE(sinks_H.dim() == 1 && sinks_H.size(0) == keys.saved.size(1) &&
                      sinks_H.scalar_type() == at::kFloat,
                  Shape,
                  "attention sinks of " + shape(sinks_H) + " for a result " + shape(keys.y_BHTK),
                  "expected one fp32 number for each head");
  const at::Tensor whole_BHT = at::logaddexp(keys.saved, sinks_H.view({1, -1, 1}));
  const at::Tensor share_BHT = (keys.saved - whole_BHT).exp_();
  at::Tensor y = at::empty_like(keys.y_BHTK);
  y.copy_(keys.y_BHTK.to(at::kFloat) * share_BHT.unsqueeze(3));
  // Graphs of operations have no log-sum-exp: their writers refuse this name.
  trace_call("tessera::attention_sinks",
             [&] {
               return std::vector<c10::IValue>{keys.y_BHTK, sinks_H};
             },
             {y});
  return {y, whole_BHT};
}

at::Tensor sinks_grad(const at::Tensor& dy_BHTK,
                      const AttentionOut& out,
                      const at::Tensor& sinks_H) {
  const at::Tensor share_BHT = (sinks_H.view({1, -1, 1}) - out.saved).exp_();
  const at::Tensor mean_BHT = (dy_BHTK.to(at::kFloat) * out.y_BHTK.to(at::kFloat)).sum(3);
  return (share_BHT * mean_BHT).sum(at::IntArrayRef{0, 2}).neg_();
}

}  // namespace tessera::ops
