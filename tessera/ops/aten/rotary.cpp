// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"

namespace tessera::ops::aten {

void AtenBackend::rotary_table(const at::Tensor& positions_BT,
                               const std::vector<double>& frequencies,
                               const RotaryTable& table) const {
  const at::Tensor turns = at::tensor(frequencies, at::kDouble).to(positions_BT.device());
  const at::Tensor angles = positions_BT.to(at::kDouble).unsqueeze(2) * turns;
  table.cosine_BTP.copy_(angles.cos());
  table.sine_BTP.copy_(angles.sin());
}

void AtenBackend::rotary(const at::Tensor& x_BHTK,
                         const RotaryTable& table,
                         int direction,
                         const at::Tensor& y_BHTK) const {
  const std::int64_t P = table.cosine_BTP.size(2);
  const at::Tensor cosine = table.cosine_BTP.to(at::kFloat).unsqueeze(1),
                   sine = table.sine_BTP.to(at::kFloat).unsqueeze(1) * direction;
  const at::Tensor first = x_BHTK.narrow(3, 0, P).to(at::kFloat),
                   second = x_BHTK.narrow(3, P, P).to(at::kFloat);
  y_BHTK.narrow(3, 0, P).copy_(first * cosine - second * sine);
  y_BHTK.narrow(3, P, P).copy_(second * cosine + first * sine);
  const std::int64_t rest = x_BHTK.size(3) - 2 * P;
  y_BHTK.narrow(3, 2 * P, rest).copy_(x_BHTK.narrow(3, 2 * P, rest));
}

}  // namespace tessera::ops::aten
