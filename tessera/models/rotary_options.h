// SPDX-License-Identifier: Apache-2.0
// The options of rotary positions that families with such positions share, their conversion to
// frequencies, and their keys in Hugging Face's config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/sizes.h"
#include "tessera/ops/rotary.h"

namespace tessera::models {

struct RotaryOptions {
  double rope_theta = 10000.0;
  std::string rope_scaling = "default";
  double rope_factor = 1.0, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;
  std::int64_t rope_original_positions = 8192;
  double rope_beta_fast = 32.0, rope_beta_slow = 1.0;
  std::optional<double> rope_attention_factor;
  bool rope_truncate = true;
  double rope_mscale = 0.0, rope_mscale_all_dim = 0.0;
  std::vector<double> rope_short_factors, rope_long_factors;
  std::optional<std::int64_t> rope_length;

  /// Describes the options. `prefix` precedes their names if a model has rotary positions of two
  /// kinds; rope_length, the length of a text, is then described only without a prefix.
  void describe_rotary(config::Fields& fields, const std::string& prefix = "");
  /// Returns whether the frequencies depend on the length of the longest text.
  [[nodiscard]] bool depend_on_length() const;

 private:
  void describe_ramps(config::Fields& fields, const std::string& prefix);
  void describe_lengths(config::Fields& fields, const std::string& prefix);
};

/// The rotary scalings that RotaryOptions describe.
std::vector<std::string> rotary_scalings();

/// The rotation of queries and keys.
struct Rotation {
  double theta = 10000.0;
  ops::RotaryScaling scaling;
  /// Radians per token for each pair of the rotated channels of a head; see
  /// ops::rotary_frequencies().
  [[nodiscard]] std::vector<double> frequencies(std::int64_t channels) const {
    return ops::rotary_frequencies(channels, theta, scaling);
  }
  /// The factor of sines and cosines.
  [[nodiscard]] double factor() const { return ops::rotary_attention_factor(scaling); }
};
/// Converts the options. `channels`: the number of rotated channels per head; `prefix`: of the
/// options' names. Reports options that contradict each other.
Rotation rotation_of(const RotaryOptions& options,
                     std::int64_t channels,
                     Checks& checks,
                     const std::string& prefix = "");
/// Returns the rotation, without its scaling if the scaling has factors for another number of
/// pairs: a model that is refused for them can still be listed.
Rotation possible(Rotation rotation, std::int64_t channels);

/// The sequence length that bounds the positions of a model with these rotary positions, each
/// nullptr if it has none: no bound if frequencies are for longer texts than those of the training.
std::optional<std::int64_t> positions_bound(const RotaryOptions* options,
                                            const RotaryOptions* local,
                                            std::optional<std::int64_t> sequence_length);
/// Checks rope_length, which scalings that depend on the longest text need and others refuse, and
/// extends the model's positions to it if the scaling does. `local`: the options of a second kind
/// of rotary positions, or nullptr.
void set_longest_text(const RotaryOptions& options,
                      const RotaryOptions* local,
                      std::optional<std::int64_t> sequence_length,
                      Sizes& sizes,
                      Checks& checks);

/// Reads rope_parameters (transformers 5), or rope_scaling before that. `positions`: the model's
/// max_position_embeddings. If a scaling depends on the longest text and the file does not say its
/// length, `rope_length` is the one up to which published programs scale nothing. Throws
/// Error{Unsupported} for other scalings.
void read_rotary(const HfConfig& keys, std::int64_t positions, RotaryOptions& out);
/// The same from the object `rope` of a file with several; lengths may also be among `keys`.
void read_rotary(const HfConfig& keys,
                 const HfConfig& rope,
                 std::int64_t positions,
                 RotaryOptions& out);
/// For a file with several such objects: takes the length of the longest text from `keys`, or else
/// the shortest of those of the objects, of which `from` is one.
void take_length(const HfConfig& keys, const RotaryOptions& from, RotaryOptions& out);
/// The number of positions that the frequencies serve: with YaRN `rope_factor` times the original
/// ones, even if `positions`, a file's max_position_embeddings, is only the original number, as
/// where users extend Qwen; otherwise `positions`.
std::int64_t stretched_positions(const RotaryOptions& options, std::int64_t positions);
/// The value of rope_parameters.
json::Value rotary_to_hf(const RotaryOptions& options);
/// Writes rope_theta, rope_scaling, rope_parameters, and the lengths that belong to a scaling. The
/// key max_position_embeddings has to be there.
void write_rotary(const RotaryOptions& options, json::Value& hf_config);
/// The share of a head's channels that are rotated, from rope_parameters or from a separate key.
double partial_rotary_factor(const HfConfig& keys, double absent);
void set_partial_rotary_factor(json::Value& hf_config, double share);

}  // namespace tessera::models
