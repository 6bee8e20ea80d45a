// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {
namespace {

void check_table(const at::Tensor& x, const RotaryTable& table) {
  const at::Tensor& c = table.cosine_BTP;
  const bool fits = x.dim() == 4 && c.dim() == 3 && c.sizes() == table.sine_BTP.sizes() &&
                    (c.size(0) == 1 || c.size(0) == x.size(0)) && c.size(1) == x.size(2) &&
                    2 * c.size(2) <= x.size(3);
  TESSERA_REQUIRE(fits,
                  Shape,
                  "heads of " + shape(x) + " with a table of " + shape(c),
                  "expected [batch, heads, tokens, channels] and [batch or 1, tokens, pairs] with "
                  "at most half as many pairs as channels");
}

constexpr std::pair<std::string_view, RotaryScalingKind> kScalings[] = {
    {"default", RotaryScalingKind::Default},
    {"linear", RotaryScalingKind::Linear},
    {"llama3", RotaryScalingKind::Llama3},
    {"yarn", RotaryScalingKind::Yarn},
    {"longrope", RotaryScalingKind::LongRope},
};

void check_llama3(const RotaryScaling& scaling) {
  TESSERA_REQUIRE(scaling.low_freq_factor > 0 &&
                      scaling.high_freq_factor >= scaling.low_freq_factor &&
                      scaling.original_positions > 0,
                  Config,
                  fmt::format("a rotary scaling \"llama3\" with low_freq_factor {}, "
                              "high_freq_factor {} and {} original positions",
                              scaling.low_freq_factor,
                              scaling.high_freq_factor,
                              scaling.original_positions),
                  "give 0 < low_freq_factor <= high_freq_factor, and at least one position");
}

void check_yarn(const RotaryScaling& scaling, double base) {
  TESSERA_REQUIRE(scaling.beta_slow > 0 && scaling.beta_fast >= scaling.beta_slow &&
                      scaling.original_positions > 0 && base > 1.0,
                  Config,
                  fmt::format("a rotary scaling \"yarn\" with beta_slow {}, beta_fast {}, {} "
                              "original positions and the base {}",
                              scaling.beta_slow,
                              scaling.beta_fast,
                              scaling.original_positions,
                              base),
                  "give 0 < beta_slow <= beta_fast, at least one position and a base above 1");
}

const std::vector<double>& factors_of_pairs(const RotaryScaling& scaling) {
  return scaling.longest_text > scaling.original_positions ? scaling.long_factors
                                                           : scaling.short_factors;
}

void check_longrope(const RotaryScaling& scaling, std::int64_t pairs) {
  TESSERA_REQUIRE(scaling.original_positions > 0,
                  Config,
                  fmt::format("a rotary scaling \"longrope\" with {} original positions",
                              scaling.original_positions),
                  "give at least one");
  for (const auto* const factors : {&scaling.short_factors, &scaling.long_factors}) {
    const bool fits =
        std::ssize(*factors) == pairs &&
        std::all_of(factors->begin(), factors->end(), [](double factor) { return factor > 0.0; });
    TESSERA_REQUIRE(fits,
                    Config,
                    fmt::format("a rotary scaling \"longrope\" with {} {} factors for {} pairs",
                                factors->size(),
                                factors == &scaling.short_factors ? "short" : "long",
                                pairs),
                    "give one above 0 for each pair of channels");
  }
}

void check_scaling(const RotaryScaling& scaling, std::int64_t pairs, double base) {
  if (scaling.kind == RotaryScalingKind::Default) return;
  TESSERA_REQUIRE(scaling.factor > 0,
                  Config,
                  fmt::format("a rotary scaling with the factor {}", scaling.factor),
                  "give a factor above 0");
  if (scaling.kind == RotaryScalingKind::Llama3) check_llama3(scaling);
  if (scaling.kind == RotaryScalingKind::Yarn) check_yarn(scaling, base);
  if (scaling.kind == RotaryScalingKind::LongRope) check_longrope(scaling, pairs);
}

double llama3_frequency(double frequency, const RotaryScaling& scaling) {
  const double lowered = frequency / scaling.factor;
  // Rotations of the pair within the original training length.
  const double periods = static_cast<double>(scaling.original_positions) * frequency / (2.0 * M_PI);
  if (periods <= scaling.low_freq_factor) return lowered;
  // Llama 4 Scout has equal factors: no frequency lies between them.
  if (periods >= scaling.high_freq_factor) return frequency;
  const double kept =
      (periods - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - kept) * lowered + kept * frequency;
}

/// The pairs between which YaRN's ramp rises from 0 to 1.
struct Ramp {
  double low, high;
  [[nodiscard]] double at(std::int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};
Ramp ramp_of(std::int64_t channels, double base, const RotaryScaling& scaling) {
  const auto d = static_cast<double>(channels);
  // The pair that rotates `turns` times.
  const auto pair_of = [&](double turns) {
    return d * std::log(static_cast<double>(scaling.original_positions) / (turns * 2.0 * M_PI)) /
           (2.0 * std::log(base));
  };
  Ramp out{pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)};
  if (scaling.truncate) out = {std::floor(out.low), std::ceil(out.high)};
  out = {std::max(out.low, 0.0), std::min(out.high, d - 1.0)};
  if (out.low == out.high) out.high += 0.001;
  return out;
}

at::Tensor turned(const char* name, const at::Tensor& x_BHTK, const RotaryTable& table, int way) {
  check_table(x_BHTK, table);
  const std::int64_t B = x_BHTK.size(0), H = x_BHTK.size(1), T = x_BHTK.size(2), K = x_BHTK.size(3);
  at::Tensor y = at::empty({B, T, H, K}, x_BHTK.options()).transpose(1, 2);
  const OpScope scope(name, [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(x_BHTK.nbytes()), .shape = shape(x_BHTK)};
  });
  if (x_BHTK.is_meta() || x_BHTK.numel() == 0) return y;
  backend(x_BHTK.device()).rotary(x_BHTK, table, way, y);
  return y;
}

}  // namespace

RotaryScalingKind rotary_scaling_from_name(std::string_view name) {
  const auto* const known = std::find_if(std::begin(kScalings),
                                         std::end(kScalings),
                                         [&](const auto& entry) { return entry.first == name; });
  TESSERA_REQUIRE(known != std::end(kScalings),
                  Config,
                  fmt::format("unknown rotary scaling \"{}\"", name),
                  text::suggestion(name, rotary_scaling_names()));
  return known->second;
}

std::vector<std::string> rotary_scaling_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kScalings)
    names.emplace_back(name);
  return names;
}

std::vector<double> rotary_frequencies(std::int64_t channels,
                                       double base,
                                       const RotaryScaling& scaling) {
  TESSERA_REQUIRE(channels > 0 && channels % 2 == 0,
                  Shape,
                  "rotary positions of " + std::to_string(channels) + " channels",
                  "channels turn in pairs");
  check_scaling(scaling, channels / 2, base);
  const bool yarn = scaling.kind == RotaryScalingKind::Yarn;
  const Ramp ramp = yarn ? ramp_of(channels, base, scaling) : Ramp{};
  std::vector<double> out;
  for (std::int64_t pair = 0; pair < channels / 2; ++pair) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(channels));
    switch (scaling.kind) {
      case RotaryScalingKind::Default:
        out.push_back(frequency);
        break;
      case RotaryScalingKind::Linear:
        out.push_back(frequency / scaling.factor);
        break;
      case RotaryScalingKind::Llama3:
        out.push_back(llama3_frequency(frequency, scaling));
        break;
      case RotaryScalingKind::Yarn:
        out.push_back(frequency / scaling.factor * ramp.at(pair) +
                      frequency * (1.0 - ramp.at(pair)));
        break;
      case RotaryScalingKind::LongRope:
        out.push_back(frequency / factors_of_pairs(scaling)[static_cast<std::size_t>(pair)]);
        break;
    }
  }
  return out;
}

double rotary_attention_factor(const RotaryScaling& scaling) {
  const bool yarn = scaling.kind == RotaryScalingKind::Yarn;
  if (!yarn && scaling.kind != RotaryScalingKind::LongRope) return 1.0;
  if (scaling.attention_factor) return *scaling.attention_factor;
  if (scaling.factor <= 1.0) return 1.0;
  const double more = std::log(scaling.factor);
  if (!yarn)
    return std::sqrt(1.0 + more / std::log(static_cast<double>(scaling.original_positions)));
  const auto grown = [&](double scale) { return 0.1 * scale * more + 1.0; };
  if (scaling.mscale != 0.0 && scaling.mscale_all_dim != 0.0)
    return grown(scaling.mscale) / grown(scaling.mscale_all_dim);
  return grown(1.0);
}

RotaryTable rotary_table(const at::Tensor& positions_BT,
                         const std::vector<double>& frequencies,
                         double factor) {
  TESSERA_REQUIRE(positions_BT.dim() == 2 && positions_BT.scalar_type() == at::kLong,
                  Shape,
                  std::string("positions of ") + c10::toString(positions_BT.scalar_type()) +
                      shape(positions_BT),
                  "expected int64 of [batch, tokens]");
  const auto P = static_cast<std::int64_t>(frequencies.size());
  const at::TensorOptions floats = positions_BT.options().dtype(at::kFloat);
  RotaryTable table{at::empty({positions_BT.size(0), positions_BT.size(1), P}, floats),
                    at::empty({positions_BT.size(0), positions_BT.size(1), P}, floats)};
  if (positions_BT.is_meta()) return table;
  backend(positions_BT.device()).rotary_table(positions_BT, frequencies, table);
  if (factor != 1.0) {
    table.cosine_BTP.mul_(factor);
    table.sine_BTP.mul_(factor);
  }
  trace_call("tessera::rotary_table",
             [&] {
               return std::vector<c10::IValue>{positions_BT, frequencies, factor};
             },
             {table.cosine_BTP, table.sine_BTP});
  return table;
}

at::Tensor rotary(const at::Tensor& x_BHTK, const RotaryTable& table) {
  at::Tensor y = turned("rotary", x_BHTK, table, 1);
  trace_call("tessera::rotary",
             [&] {
               return std::vector<c10::IValue>{
                   x_BHTK, table.cosine_BTP, table.sine_BTP, table.interleaved};
             },
             {y});
  return y;
}

at::Tensor rotary_backward(const at::Tensor& dy_BHTK, const RotaryTable& table) {
  return turned("rotary backward", dy_BHTK, table, -1);
}

}  // namespace tessera::ops
