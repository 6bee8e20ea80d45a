// SPDX-License-Identifier: Apache-2.0
// Rotary positions: pairs of channels of a head turn by an angle that grows with the token's place,
// so that queries and keys see how far apart they are. Channel c turns with channel K/2 + c, as in
// LLaMA's published weights. Source: Su et al. 2021, "RoFormer: enhanced transformer with rotary
// position embedding". Legend: B batch, H heads, T tokens, K channels of a head, P pairs of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

enum class RotaryScalingKind : std::uint8_t {
  Default,  ///< frequencies as they are
  Linear,   ///< all divided by the factor
  Llama3    ///< long wavelengths divided by the factor, short ones kept, those between interpolated
};
/// "default", "linear", "llama3": Hugging Face's rope_type. Error{Config} with the nearest name.
RotaryScalingKind rotary_scaling_from_name(std::string_view name);
std::vector<std::string> rotary_scaling_names();

/// How frequencies are lowered, so that a model reads longer texts than those it was trained on
/// first.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::Default;
  double factor = 1.0;
  // Llama3 alone. A wavelength is long beyond original_positions / low_freq_factor tokens, and
  // short below original_positions / high_freq_factor.
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_positions = 8192;  ///< length of the texts of the first training
};

/// Radians a token of each of the `channels` / 2 pairs: base^(-2 p / channels), scaled.
/// Error{Shape} unless `channels` is even and positive; Error{Config} for a scaling whose factors
/// are not positive, or not in order.
std::vector<double> rotary_frequencies(std::int64_t channels,
                                       double base,
                                       const RotaryScaling& scaling = {});

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
