// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/formulas.h"

#include "tessera/base/error.h"

namespace tessera::predict {

double zero_state_bytes(double parameters, int stage, int ranks) {
  const double n = ranks;
  const double weights = 2 / (stage >= 3 ? n : 1), gradients = 2 / (stage >= 2 ? n : 1),
               states = 12 / (stage >= 1 ? n : 1);
  return parameters * (weights + gradients + states);
}

double activation_bytes(const ActivationSizes& sizes, Kept kept) {
  const double sbh = sizes.length * sizes.micro * sizes.hidden, t = sizes.tensor;
  const double scores = 5 * sizes.heads * sizes.length / sizes.hidden;
  const auto of_layer = [&] {
    switch (kept) {
      case Kept::All:
        return sbh * (10 + 24 / t + scores / t);
      case Kept::Sequence:
        return sbh / t * (34 + scores);
      case Kept::Selective:
        return sbh * (10 + 24 / t);
      case Kept::SequenceSelective:
        return sbh / t * 34;
      case Kept::Inputs:
        return sbh * 2;
    }
    TESSERA_ASSERT(false);
  };
  const double p = sizes.pipeline, v = sizes.chunks;
  const double interleaved = v > 1 ? 1 + (p - 1) / (p * v) : 1;
  return of_layer() * sizes.layers * interleaved;
}

double layer_state_bytes(const ActivationSizes& sizes) {
  return 18 * 12 * sizes.layers * sizes.hidden * sizes.hidden /
         (static_cast<double>(sizes.tensor) * sizes.pipeline);
}

}  // namespace tessera::predict
