// SPDX-License-Identifier: Apache-2.0
// Rotary positions: pairs of channels of a head turn by an angle that grows with the token's place,
// so that queries and keys see how far apart they are. Of the 2 P channels that turn, channel p
// turns with channel P + p, as in LLaMA's published weights, or channel 2 p with channel 2 p + 1,
// as in those of GLM. Source: Su et al. 2021, "RoFormer: enhanced transformer with rotary position
// embedding". Legend: B batch, H heads, T tokens, K channels of a head, P pairs of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

enum class RotaryScalingKind : std::uint8_t {
  Default,  ///< frequencies as they are
  Linear,   ///< all divided by the factor
  Llama3,   ///< long wavelengths divided by the factor, short ones kept, those between interpolated
  Yarn,  ///< the same with a ramp over the pairs, and sines and cosines times a factor (Peng et al.
         ///< 2023, "YaRN")
  LongRope  ///< each pair divided by a factor of its own (Ding et al. 2024, "LongRoPE")
};
/// "default", "linear", "llama3", "yarn", "longrope": Hugging Face's rope_type. Error{Config} with
/// the nearest name.
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
  /// Length of the texts of the first training. Llama3, Yarn and LongRope.
  std::int64_t original_positions = 8192;
  // Yarn alone. Pairs that turn at least beta_fast times within original_positions keep their
  // frequency, those that turn at most beta_slow times are divided by the factor.
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;                       ///< the ramp begins and ends at whole pairs
  double mscale = 0.0, mscale_all_dim = 0.0;  ///< 0: not given
  /// Yarn and LongRope: what sines and cosines are multiplied by; absent: by the rule of the kind.
  std::optional<double> attention_factor = {};
  // LongRope alone: one factor a pair for texts up to original_positions, and for longer ones. The
  // published rule chooses by the longest text of a batch, so that the result for one text depends
  // on its neighbours; here `longest_text`, one length for the whole run, chooses.
  std::vector<double> short_factors = {}, long_factors = {};
  std::int64_t longest_text = 0;
};

/// Radians a token of each of the `channels` / 2 pairs: base^(-2 p / channels), scaled.
/// Error{Shape} unless `channels` is even and positive; Error{Config} for a scaling whose factors
/// are not positive, not in order, or not one a pair.
std::vector<double> rotary_frequencies(std::int64_t channels,
                                       double base,
                                       const RotaryScaling& scaling = {});

/// The factor by which the scaling multiplies sines and cosines, which makes scores sharper in long
/// texts: 1 but for Yarn and LongRope.
double rotary_attention_factor(const RotaryScaling& scaling);

/// Of angles that are made in fp64.
struct RotaryTable {
  at::Tensor cosine_BTP, sine_BTP;  ///< fp32; B may be 1 for all
  bool interleaved = false;         ///< channels 2 p and 2 p + 1 are a pair, else p and P + p
};
/// positions [B, T] int64; `factor`: rotary_attention_factor(). Works on meta.
RotaryTable rotary_table(const at::Tensor& positions_BT,
                         const std::vector<double>& frequencies,
                         double factor = 1.0);

/// In x's dtype, computed in fp32; channels beyond 2 P stay. Heads and channels of a token lie side
/// by side in what is returned. Works on meta.
at::Tensor rotary(const at::Tensor& x_BHTK, const RotaryTable& table);
/// The gradient turns back, and takes up the factor of the table.
at::Tensor rotary_backward(const at::Tensor& dy_BHTK, const RotaryTable& table);

}  // namespace tessera::ops
