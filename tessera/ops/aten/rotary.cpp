// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <ATen/ATen.h>

#include "tessera/ops/aten/backend.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::aten {

void AtenBackend::rotary_table(const at::Tensor& positions_BT,
                               const std::vector<double>& frequencies,
                               const RotaryTable& table) const {
  const at::Tensor turns = on_device(at::tensor(frequencies, at::kDouble), positions_BT.device());
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
  // The first channels of all pairs, or the second ones.
  const auto channels = [&](const at::Tensor& of, std::int64_t which) {
    return table.interleaved ? of.slice(3, which, 2 * P, 2) : of.narrow(3, which * P, P);
  };
  const at::Tensor first = channels(x_BHTK, 0).to(at::kFloat),
                   second = channels(x_BHTK, 1).to(at::kFloat);
  channels(y_BHTK, 0).copy_(first * cosine - second * sine);
  channels(y_BHTK, 1).copy_(second * cosine + first * sine);
  const std::int64_t rest = x_BHTK.size(3) - 2 * P;
  y_BHTK.narrow(3, 2 * P, rest).copy_(x_BHTK.narrow(3, 2 * P, rest));
}

}  // namespace tessera::ops::aten
