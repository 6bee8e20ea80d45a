// SPDX-License-Identifier: Apache-2.0
// Rotary positions: pairs of channels of a head turn by an angle that grows with the token's place,
// so that queries and keys see how far apart they are. Channel c turns with channel K/2 + c, as in
// LLaMA's published weights. Source: Su et al. 2021, "RoFormer: enhanced transformer with rotary
// position embedding". Legend: B batch, H heads, T tokens, K channels of a head, P pairs of them.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// Radians a token of each of the `channels` / 2 pairs: base^(-2 p / channels). Error{Shape} unless
/// `channels` is even and positive.
std::vector<double> rotary_frequencies(std::int64_t channels, double base);

/// Of angles that are made in fp64.
struct RotaryTable {
  at::Tensor cosine_BTP, sine_BTP;  ///< fp32; B may be 1 for all
};
/// positions [B, T] int64. Works on meta.
RotaryTable rotary_table(const at::Tensor& positions_BT, const std::vector<double>& frequencies);

/// In x's dtype, computed in fp32; channels beyond 2 P stay. Heads and channels of a token lie side
/// by side in what is returned. Works on meta.
at::Tensor rotary(const at::Tensor& x_BHTK, const RotaryTable& table);
/// The gradient turns back.
at::Tensor rotary_backward(const at::Tensor& dy_BHTK, const RotaryTable& table);

}  // namespace tessera::ops
