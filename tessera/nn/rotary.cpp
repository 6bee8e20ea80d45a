// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <ATen/ATen.h>

#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/kv_cache.h"

namespace tessera::nn {

ops::RotaryTable rotary_table(const at::Tensor& ids_BT,
                              std::int64_t most,
                              const std::vector<double>& frequencies,
                              const StepContext& context,
                              const at::Tensor& starts_BT,
                              double factor) {
  // Without documents or differing lengths, all sequences have the same positions: one row is
  // enough.
  const bool apart = context.batch != nullptr && context.batch->has(kTextPosition);
  if (!starts_BT.defined() && !apart)
    return ops::rotary_table(positions(ids_BT.narrow(0, 0, 1), most, context), frequencies, factor);
  const at::Tensor positions_BT = positions(ids_BT, most, context, starts_BT);
  const OwnSamples samples =
      flow_form(context).own_samples(positions_BT.size(0), FlowPlace::Inside, context);
  return ops::rotary_table(
      positions_BT.narrow(0, samples.begin, samples.count), frequencies, factor);
}

}  // namespace tessera::nn
