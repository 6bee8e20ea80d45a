// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/rotary_options.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tessera::models {
namespace {

constexpr const char* kLongRope = "longrope";
constexpr const char* kDynamic = "dynamic";
constexpr double kLargest = 1e6;

ops::RotaryScaling scaling_of(const RotaryOptions& options) {
  ops::RotaryScaling out = {.kind = options.rope_scaling == kDynamic
                                        ? ops::RotaryScalingKind::Default
                                        : ops::rotary_scaling_from_name(options.rope_scaling),
                            .factor = options.rope_factor,
                            .low_freq_factor = options.rope_low_freq_factor,
                            .high_freq_factor = options.rope_high_freq_factor,
                            .original_positions = options.rope_original_positions,
                            .beta_fast = options.rope_beta_fast,
                            .beta_slow = options.rope_beta_slow,
                            .truncate = options.rope_truncate,
                            .mscale = options.rope_mscale,
                            .mscale_all_dim = options.rope_mscale_all_dim};
  out.attention_factor = options.rope_attention_factor;
  out.short_factors = options.rope_short_factors;
  out.long_factors = options.rope_long_factors;
  out.longest_text = options.rope_length.value_or(0);
  return out;
}

/// The base of the frequencies for texts of rope_length tokens (bloc97 2023, "Dynamically scaled
/// RoPE"): it grows beyond the original length.
double dynamic_base(const RotaryOptions& options, std::int64_t channels) {
  const auto original = static_cast<double>(options.rope_original_positions),
             length = std::max(static_cast<double>(options.rope_length.value_or(1)), original),
             d = static_cast<double>(channels);
  if (channels <= 2) return options.rope_theta;
  return options.rope_theta *
         std::pow(options.rope_factor * length / original - (options.rope_factor - 1.0),
                  d / (d - 2.0));
}

bool is_dynamic(const RotaryOptions* options) {
  return options != nullptr && options->rope_scaling == kDynamic;
}

/// A list of positive numbers, one for each pair of rotated channels.
std::vector<double> factors_of(const HfConfig& rope, const char* key) {
  constexpr std::size_t kMost = 1U << 16U;
  const json::Value* const list = rope.find(key);
  const bool numbers = list != nullptr && list->is_array() && list->items().size() <= kMost &&
                       std::all_of(list->items().begin(), list->items().end(), [](const auto& one) {
                         return one.is_number() && one.as_double() > 0;
                       });
  rope.refuse(key, numbers, "a list of positive factors");
  std::vector<double> out;
  for (const json::Value& one : list->items())
    out.push_back(one.as_double());
  return out;
}

json::Value numbers_of(const std::vector<double>& list) {
  json::Value out = json::Value::array();
  for (const double one : list)
    out.push_back(real_to_hf(one));
  return out;
}

}  // namespace

std::vector<std::string> rotary_scalings() {
  return {"default", "linear", "llama3", "yarn", kLongRope, kDynamic};
}

bool RotaryOptions::depend_on_length() const {
  return rope_scaling == kLongRope || rope_scaling == kDynamic;
}

void RotaryOptions::describe_rotary(config::Fields& fields, const std::string& prefix) {
  fields.field(prefix + "rope_theta",
               rope_theta,
               {.text = prefix.empty() ? "Base of the rotary frequencies."
                                       : "Base of the rotary frequencies in layers with a window.",
                .min = 1,
                .max = 1e12});
  fields.field(
      prefix + "rope_scaling",
      rope_scaling,
      {.text =
           "Scaling of the rotary frequencies for contexts longer than in the original training.",
       .choices = rotary_scalings()});
  fields.field(prefix + "rope_factor",
               rope_factor,
               {.text = fmt::format("Factor of {}rope_scaling.", prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true});
  describe_ramps(fields, prefix);
  describe_lengths(fields, prefix);
}

void RotaryOptions::describe_ramps(config::Fields& fields, const std::string& prefix) {
  fields.field(prefix + "rope_low_freq_factor",
               rope_low_freq_factor,
               {.text = fmt::format("Periods in {0}rope_original_positions up to which "
                                    "{0}rope_scaling llama3 divides a frequency by the whole "
                                    "factor.",
                                    prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true});
  fields.field(prefix + "rope_high_freq_factor",
               rope_high_freq_factor,
               {.text = fmt::format("Periods in {0}rope_original_positions from which "
                                    "{0}rope_scaling llama3 keeps a frequency.",
                                    prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true});
  fields.field(prefix + "rope_original_positions",
               rope_original_positions,
               {.text = fmt::format("Sequence length of the original training, for {}rope_scaling "
                                    "llama3, yarn, longrope and dynamic.",
                                    prefix),
                .unit = "tokens",
                .min = 1,
                .max = 1e8});
  fields.field(prefix + "rope_beta_fast",
               rope_beta_fast,
               {.text = fmt::format("Number of rotations within {0}rope_original_positions from "
                                    "which {0}rope_scaling yarn keeps a frequency.",
                                    prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true});
  fields.field(prefix + "rope_beta_slow",
               rope_beta_slow,
               {.text = fmt::format("Number of rotations within {0}rope_original_positions up to "
                                    "which {0}rope_scaling yarn divides a frequency by the whole "
                                    "factor.",
                                    prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true});
}

void RotaryOptions::describe_lengths(config::Fields& fields, const std::string& prefix) {
  fields.field(prefix + "rope_attention_factor",
               rope_attention_factor,
               {.text = fmt::format(
                    "Factor of sines and cosines with {}rope_scaling yarn and longrope.", prefix),
                .min = 0,
                .max = kLargest,
                .above_min = true,
                .default_text = fmt::format("yarn: 0.1 ln({0}rope_factor) + 1; longrope: sqrt(1 + "
                                            "ln({0}rope_factor) / ln({0}rope_original_positions))",
                                            prefix)});
  fields.field(prefix + "rope_truncate",
               rope_truncate,
               {.text = fmt::format("Whether the ramp of {}rope_scaling yarn begins and ends at "
                                    "whole pairs of channels.",
                                    prefix)});
  fields.field(prefix + "rope_mscale",
               rope_mscale,
               {.text = fmt::format("Factor of the logarithm in {0}rope_attention_factor of yarn, "
                                    "divided by that with {0}rope_mscale_all_dim if both are "
                                    "above 0.",
                                    prefix),
                .min = 0,
                .max = kLargest});
  fields.field(prefix + "rope_mscale_all_dim",
               rope_mscale_all_dim,
               {.text = fmt::format("See {}rope_mscale.", prefix), .min = 0, .max = kLargest});
  fields.field(prefix + "rope_short_factors",
               rope_short_factors,
               {.text = fmt::format("Divisor of each pair's frequency with {0}rope_scaling "
                                    "longrope, if rope_length is at most "
                                    "{0}rope_original_positions.",
                                    prefix)});
  fields.field(prefix + "rope_long_factors",
               rope_long_factors,
               {.text = "The same for a larger rope_length."});
  if (!prefix.empty()) return;
  fields.field("rope_length",
               rope_length,
               {.text = "Tokens of the longest text, which rope_scaling longrope and dynamic need: "
                        "published programs let the longest text of a batch decide, so the result "
                        "of one text would depend on the others.",
                .unit = "tokens",
                .min = 1,
                .max = 1e8});
}

Rotation rotation_of(const RotaryOptions& options,
                     std::int64_t channels,
                     Checks& checks,
                     const std::string& prefix) {
  const std::string path = "model." + prefix;
  checks.require(options.rope_high_freq_factor >= options.rope_low_freq_factor,
                 path + "rope_high_freq_factor",
                 fmt::format("rope_high_freq_factor {} is below rope_low_freq_factor {}",
                             options.rope_high_freq_factor,
                             options.rope_low_freq_factor),
                 "set a larger rope_high_freq_factor");
  checks.require(options.rope_beta_fast > options.rope_beta_slow,
                 path + "rope_beta_fast",
                 fmt::format("rope_beta_fast {} is not above rope_beta_slow {}",
                             options.rope_beta_fast,
                             options.rope_beta_slow),
                 "set a larger rope_beta_fast");
  const auto pairs = static_cast<std::size_t>(std::max<std::int64_t>(channels, 0) / 2);
  const bool longrope = options.rope_scaling == kLongRope;
  checks.require(
      !longrope || !options.rope_length ||
          (options.rope_short_factors.size() == pairs && options.rope_long_factors.size() == pairs),
      path + "rope_long_factors",
      fmt::format("{} short and {} long factors for {} pairs of rotated channels",
                  options.rope_short_factors.size(),
                  options.rope_long_factors.size(),
                  pairs),
      "give one factor for each pair");
  return {options.rope_scaling == kDynamic ? dynamic_base(options, channels) : options.rope_theta,
          scaling_of(options)};
}

Rotation possible(Rotation rotation, std::int64_t channels) {
  const auto pairs = static_cast<std::size_t>(channels / 2);
  if (rotation.scaling.kind == ops::RotaryScalingKind::LongRope &&
      (rotation.scaling.short_factors.size() != pairs ||
       rotation.scaling.long_factors.size() != pairs))
    rotation.scaling = {};
  return rotation;
}

std::optional<std::int64_t> positions_bound(const RotaryOptions* options,
                                            const RotaryOptions* local,
                                            std::optional<std::int64_t> sequence_length) {
  const bool longer =
      options != nullptr && options->rope_length && (is_dynamic(options) || is_dynamic(local));
  return longer ? std::nullopt : sequence_length;
}

void set_longest_text(const RotaryOptions& options,
                      const RotaryOptions* local,
                      std::optional<std::int64_t> sequence_length,
                      Sizes& sizes,
                      Checks& checks) {
  const bool of_local = local != nullptr && local->depend_on_length();
  const bool needed = options.depend_on_length() || of_local;
  const RotaryOptions& which = options.depend_on_length() || !of_local ? options : *local;
  checks.require(
      !needed || options.rope_length,
      "model.rope_length",
      fmt::format("rope_scaling is \"{}\", with which published programs let the longest "
                  "text of a batch decide the result of all of its texts",
                  which.rope_scaling),
      "set model.rope_length to the longest text of all in tokens (in a folder: "
      "\"rope_length\" in its config.json)");
  checks.require(needed || !options.rope_length,
                 "model.rope_length",
                 fmt::format("rope_scaling {} does not depend on lengths", options.rope_scaling),
                 "remove rope_length");
  if (!needed || !options.rope_length) return;
  const std::int64_t length = *options.rope_length;
  // These frequencies are for texts that are longer than those of the training.
  if (is_dynamic(&options) || is_dynamic(local))
    sizes.max_positions = std::max(sizes.max_positions, length);
  checks.require(length <= sizes.max_positions && sequence_length.value_or(0) <= length,
                 "model.rope_length",
                 fmt::format("rope_length {} is not between data.sequence_length and the {} "
                             "positions of the model",
                             length,
                             sizes.max_positions),
                 "choose a length between the two");
}

void read_rotary(const HfConfig& keys,
                 const HfConfig& rope,
                 std::int64_t positions,
                 RotaryOptions& out) {
  out.rope_theta = rope.number("rope_theta", out.rope_theta, 1, 1e12);
  const char* const type = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  out.rope_scaling = rope.word(type, "default");
  // Before it had a name, files of phi3 called it so.
  const bool pairs = rope.given("short_factor");
  if (out.rope_scaling == "su" || (out.rope_scaling == "yarn" && pairs))
    out.rope_scaling = kLongRope;
  const auto names = rotary_scalings();
  rope.refuse(type,
              std::find(names.begin(), names.end(), out.rope_scaling) != names.end(),
              "one of default, linear, llama3, yarn, longrope and dynamic");
  if (out.rope_scaling == "default") return;
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const std::int64_t original = keys.count(kOriginal, positions, 1e8);
  out.rope_original_positions =
      keys.empty(kOriginal) ? rope.count(kOriginal, original, 1e8) : original;
  const bool yarn = out.rope_scaling == "yarn", longrope = out.rope_scaling == kLongRope;
  if (out.rope_scaling == kDynamic) out.rope_original_positions = positions;
  if (out.depend_on_length()) {
    // Up to this length published programs scale no text for its length.
    const std::int64_t short_text = std::min(out.rope_original_positions, positions);
    out.rope_length = keys.count("rope_length", short_text, 1e8);
  }
  out.rope_factor = rope.number(
      "factor",
      yarn || longrope
          ? static_cast<double>(positions) / static_cast<double>(out.rope_original_positions)
          : 1.0,
      1e-6,
      kLargest);
  out.rope_low_freq_factor = rope.number("low_freq_factor", 1.0, 1e-6, kLargest);
  out.rope_high_freq_factor = rope.number("high_freq_factor", 4.0, 1e-6, kLargest);
  if (!rope.empty("attention_factor") && (yarn || longrope))
    out.rope_attention_factor = rope.number("attention_factor", 1.0, 1e-6, kLargest);
  if (longrope) {
    out.rope_short_factors = factors_of(rope, "short_factor");
    out.rope_long_factors = factors_of(rope, "long_factor");
  }
  if (!yarn) return;
  out.rope_beta_fast = rope.number("beta_fast", 32.0, 1e-6, kLargest);
  out.rope_beta_slow = rope.number("beta_slow", 1.0, 1e-6, kLargest);
  out.rope_mscale = rope.number("mscale", 0.0, 0, kLargest);
  out.rope_mscale_all_dim = rope.number("mscale_all_dim", 0.0, 0, kLargest);
  out.rope_truncate = rope.flag("truncate", true);
}

void take_length(const HfConfig& keys, const RotaryOptions& from, RotaryOptions& out) {
  if (!from.depend_on_length()) return;
  const std::int64_t own = from.rope_length.value_or(1);
  const bool given = !keys.empty("rope_length");
  out.rope_length =
      given ? keys.count("rope_length", 1, 1e8) : std::min(out.rope_length.value_or(own), own);
}

void read_rotary(const HfConfig& keys, std::int64_t positions, RotaryOptions& out) {
  const char* const key = keys.empty("rope_parameters") ? "rope_scaling" : "rope_parameters";
  if (!keys.empty(key)) read_rotary(keys, HfConfig(*keys.find(key)), positions, out);
}

std::int64_t stretched_positions(const RotaryOptions& options, std::int64_t positions) {
  if (options.rope_scaling != "yarn") return positions;
  const double served = options.rope_factor * static_cast<double>(options.rope_original_positions);
  return std::max(positions, static_cast<std::int64_t>(std::llround(std::min(served, 1e8))));
}

json::Value rotary_to_hf(const RotaryOptions& options) {
  json::Value out = json::Value::object({{"rope_type", json::Value::string(options.rope_scaling)},
                                         {"rope_theta", real_to_hf(options.rope_theta)}});
  if (options.rope_scaling == "default") return out;
  out["factor"] = real_to_hf(options.rope_factor);
  if (options.rope_scaling == kDynamic) return out;
  const auto kind = ops::rotary_scaling_from_name(options.rope_scaling);
  if (kind == ops::RotaryScalingKind::Linear) return out;
  out["original_max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
  if (kind == ops::RotaryScalingKind::Yarn) {
    out["beta_fast"] = real_to_hf(options.rope_beta_fast);
    out["beta_slow"] = real_to_hf(options.rope_beta_slow);
    if (!options.rope_truncate) out["truncate"] = json::Value::boolean(false);
    if (options.rope_mscale > 0) out["mscale"] = real_to_hf(options.rope_mscale);
    if (options.rope_mscale_all_dim > 0)
      out["mscale_all_dim"] = real_to_hf(options.rope_mscale_all_dim);
  }
  if (options.rope_attention_factor)
    out["attention_factor"] = real_to_hf(*options.rope_attention_factor);
  if (kind == ops::RotaryScalingKind::LongRope) {
    out["short_factor"] = numbers_of(options.rope_short_factors);
    out["long_factor"] = numbers_of(options.rope_long_factors);
  }
  if (kind != ops::RotaryScalingKind::Llama3) return out;
  out["low_freq_factor"] = real_to_hf(options.rope_low_freq_factor);
  out["high_freq_factor"] = real_to_hf(options.rope_high_freq_factor);
  return out;
}

void write_rotary(const RotaryOptions& options, json::Value& hf_config) {
  const json::Value rotary = rotary_to_hf(options);
  hf_config["rope_theta"] = real_to_hf(options.rope_theta);
  hf_config["rope_scaling"] = options.rope_scaling == "default" ? json::Value() : rotary;
  hf_config["rope_parameters"] = rotary;
  if (options.rope_length) hf_config["rope_length"] = json::Value::integer(*options.rope_length);
  if (options.rope_scaling == kDynamic)
    hf_config["max_position_embeddings"] = json::Value::integer(options.rope_original_positions);
}

double partial_rotary_factor(const HfConfig& keys, double absent) {
  const double beside = keys.number("partial_rotary_factor", absent, 1e-6, 1);
  if (keys.empty("rope_parameters")) return beside;
  return HfConfig(*keys.find("rope_parameters")).number("partial_rotary_factor", beside, 1e-6, 1);
}

void set_partial_rotary_factor(json::Value& hf_config, double share) {
  hf_config["partial_rotary_factor"] = real_to_hf(share);
  hf_config["rope_parameters"]["partial_rotary_factor"] = real_to_hf(share);
}

}  // namespace tessera::models
