// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <algorithm>
#include <cmath>

#include "tessera/ops/cpu/backend.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Minimum numbers of elements, or angles, that justify another thread.
constexpr std::int64_t kRotaryGrainElements = 8192, kRotaryGrainAngles = 1024;

RotaryRows::Strides strides_of(const at::Tensor& x_BHTK) {
  return {x_BHTK.stride(0), x_BHTK.stride(2), x_BHTK.stride(1)};
}

}  // namespace

void CpuBackend::rotary_table(const at::Tensor& positions_BT,
                              const std::vector<double>& frequencies,
                              const RotaryTable& table) const {
  const auto P = static_cast<std::int64_t>(frequencies.size());
  const at::Tensor positions = positions_BT.contiguous();
  const std::int64_t* position = positions.const_data_ptr<std::int64_t>();
  float *cosine = table.cosine_BTP.data_ptr<float>(), *sine = table.sine_BTP.data_ptr<float>();
  parallel(positions.numel(),
           kRotaryGrainAngles / std::max<std::int64_t>(1, P),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t token = begin; token < end; ++token) {
               for (std::int64_t pair = 0; pair < P; ++pair) {
                 const double angle = static_cast<double>(position[token]) *
                                      frequencies[static_cast<std::size_t>(pair)];
                 cosine[token * P + pair] = static_cast<float>(std::cos(angle));
                 sine[token * P + pair] = static_cast<float>(std::sin(angle));
               }
             }
           });
}

void CpuBackend::rotary(const at::Tensor& x_BHTK,
                        const RotaryTable& table,
                        int direction,
                        const at::Tensor& y_BHTK) const {
  const std::int64_t B = x_BHTK.size(0), H = x_BHTK.size(1), T = x_BHTK.size(2), K = x_BHTK.size(3);
  const at::Tensor x = x_BHTK.stride(3) == 1 || K == 1 ? x_BHTK : x_BHTK.contiguous();
  const at::Tensor cosine = plain_float(table.cosine_BTP), sine = plain_float(table.sine_BTP);
  const RotaryRows rows{.x = x.data_ptr(),
                        .y = y_BHTK.data_ptr(),
                        .from = strides_of(x),
                        .to = strides_of(y_BHTK),
                        .tokens = T,
                        .heads = H,
                        .channels = K,
                        .pairs = cosine.size(2),
                        .cosine = cosine.data_ptr<float>(),
                        .sine = sine.data_ptr<float>(),
                        .table_tokens = cosine.size(0) == 1 ? 0 : T,
                        .direction = static_cast<float>(direction),
                        .interleaved = table.interleaved};
  const auto kernel = kernels().rotary[float_of(x)];
  parallel(B * T, kRotaryGrainElements / (H * K), [&](std::int64_t begin, std::int64_t end) {
    kernel(rows, begin, end);
  });
}

}  // namespace tessera::ops::cpu
