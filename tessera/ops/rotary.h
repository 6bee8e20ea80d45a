// SPDX-License-Identifier: Apache-2.0
// Rotary positions: pairs of channels of a head are rotated by an angle proportional to the token's
// position, so that scores depend on the distance between query and key. Of the 2 P rotated
// channels, channel p is paired with channel P + p, as in LLaMA's published weights, or channel 2 p
// with channel 2 p + 1, as in GLM's. Source: Su et al. 2021, "RoFormer: enhanced transformer with
// rotary position embedding". Legend: B batch, H heads, T tokens, K channels of a head, P pairs of
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::ops {

enum class RotaryScalingKind : std::uint8_t {
  Default,  ///< unchanged frequencies
  Linear,   ///< all divided by the factor
  Llama3,   ///< long wavelengths divided by the factor, short ones kept, those between interpolated
  /// The same with a ramp over the pairs, and sines and cosines multiplied by a factor (Peng et al.
  /// 2023, "YaRN").
  Yarn,
  LongRope  ///< each pair divided by its own factor (Ding et al. 2024, "LongRoPE")
};
/// "default", "linear", "llama3", "yarn", "longrope": Hugging Face's rope_type. Throws
/// Error{Config} with the nearest name.
RotaryScalingKind rotary_scaling_from_name(std::string_view name);
std::vector<std::string> rotary_scaling_names();

/// The way in which frequencies are lowered, so that a model can process longer sequences than in
/// its original training.
struct RotaryScaling {
  RotaryScalingKind kind = RotaryScalingKind::Default;
  double factor = 1.0;
  // Only for Llama3. A wavelength is long beyond original_positions / low_freq_factor tokens, and
  // short below original_positions / high_freq_factor.
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  /// Sequence length of the original training. For Llama3, Yarn and LongRope.
  std::int64_t original_positions = 8192;
  // Only for Yarn. Pairs that rotate at least beta_fast times within original_positions keep their
  // frequency; those that rotate at most beta_slow times are divided by the factor.
  double beta_fast = 32.0, beta_slow = 1.0;
  bool truncate = true;                       ///< the ramp begins and ends at whole pairs
  double mscale = 0.0, mscale_all_dim = 0.0;  ///< 0: not set
  /// For Yarn and LongRope: the factor of sines and cosines; absent: by the rule of the kind.
  std::optional<double> attention_factor = {};
  // Only for LongRope: one factor per pair, for sequences up to original_positions, and for longer
  // ones. The published rule selects by the longest sequence of a batch, so the result for one
  // sequence depends on its neighbours; here `longest_text`, one length for the whole run, selects.
  std::vector<double> short_factors = {}, long_factors = {};
  std::int64_t longest_text = 0;
};

/// Radians per token of each of the `channels` / 2 pairs: base^(-2 p / channels), scaled. Throws
/// Error{Shape} unless `channels` is even and positive; throws Error{Config} for a scaling whose
/// factors are not positive, not in order, or not one per pair.
std::vector<double> rotary_frequencies(std::int64_t channels,
                                       double base,
                                       const RotaryScaling& scaling = {});

/// The factor by which the scaling multiplies sines and cosines, which sharpens scores in long
/// sequences: 1 except for Yarn and LongRope.
double rotary_attention_factor(const RotaryScaling& scaling);

/// Sines and cosines of angles that are computed in fp64.
struct RotaryTable {
  at::Tensor cosine_BTP, sine_BTP;  ///< fp32; B may be 1 for all samples
  bool interleaved = false;         ///< channels 2 p and 2 p + 1 are a pair, else p and P + p
};
/// positions [B, T] int64; `factor`: rotary_attention_factor(). Works on meta.
RotaryTable rotary_table(const at::Tensor& positions_BT,
                         const std::vector<double>& frequencies,
                         double factor = 1.0);

/// The result has x's dtype and is computed in fp32; channels beyond 2 P are copied. Heads and
/// channels of a token are contiguous in the result. Works on meta.
at::Tensor rotary(const at::Tensor& x_BHTK, const RotaryTable& table);
/// The gradient is rotated back and multiplied by the factor of the table.
at::Tensor rotary_backward(const at::Tensor& dy_BHTK, const RotaryTable& table);

}  // namespace tessera::ops
