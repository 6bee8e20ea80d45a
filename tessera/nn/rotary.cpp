// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <ATen/ATen.h>

#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"

namespace tessera::nn {

namespace {

/// The positions of this rank's samples and tokens; one row if all samples have the same: without
/// documents or differing lengths.
at::Tensor positions_here(const at::Tensor& ids_BT,
                          std::int64_t most,
                          const StepContext& context,
                          const at::Tensor& starts_BT) {
  const bool apart = context.batch != nullptr && context.batch->has(kTextPosition);
  if (!starts_BT.defined() && !apart) return positions(ids_BT.narrow(0, 0, 1), most, context);
  const at::Tensor positions_BT = positions(ids_BT, most, context, starts_BT);
  const OwnSamples samples =
      flow_form(context).own_samples(positions_BT.size(0), FlowPlace::Inside, context);
  return positions_BT.narrow(0, samples.begin, samples.count);
}

}  // namespace

ops::RotaryTable rotary_table(const at::Tensor& ids_BT,
                              std::int64_t most,
                              const std::vector<double>& frequencies,
                              const StepContext& context,
                              const at::Tensor& starts_BT,
                              double factor) {
  return ops::rotary_table(positions_here(ids_BT, most, context, starts_BT), frequencies, factor);
}

at::Tensor by_position(const at::Tensor& q_BHTK,
                       const Temperature& temperature,
                       const at::Tensor& ids_BT,
                       std::int64_t most,
                       const StepContext& context,
                       const at::Tensor& starts_BT) {
  const at::Tensor places =
      at::div(positions_here(ids_BT, most, context, starts_BT) + 1, temperature.floor, "floor");
  const at::Tensor factor_BT =
      (places.to(at::kDouble).log1p() * temperature.scale + 1.0).to(at::kFloat);
  return (q_BHTK.to(at::kFloat) * factor_BT.unsqueeze(1).unsqueeze(3)).to(q_BHTK.scalar_type());
}

}  // namespace tessera::nn
