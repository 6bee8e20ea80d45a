// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/precision_options.h"

#include <fmt/format.h>

#include "tessera/optim/loss_scale.h"

namespace tessera::optim {
namespace {

constexpr auto kAutocastTypes =
    std::to_array<config::Named<DType>>({{DType::BF16, "bfloat16"}, {DType::F16, "float16"}});
constexpr auto kAccumulationTypes =
    std::to_array<config::Named<DType>>({{DType::F32, "fp32"}, {DType::BF16, "bf16"}});

// Apex's dynamic scale: halves at every overflow, doubles after 2000 clean steps, up to 2^24.
// Source: apex.amp.scaler.LossScaler.
Fp16Options apex_scaling() {
  Fp16Options out;
  out.enabled = true;
  out.scaler = ScalerKind::Megatron;
  out.initial_scale_power = 16;
  out.hysteresis = 1;
  out.growth_interval = 2000;
  out.max_scale = 0x1p24;
  return out;
}

Fp16Options fixed_scaling(double scale) {
  Fp16Options out;
  out.enabled = true;
  out.loss_scale = scale;
  return out;
}

// amp.loss_scale as a number; nothing for "dynamic".
std::optional<double> amp_scale(const AmpOptions& amp,
                                config::Problems& problems,
                                const config::Origins& origins) {
  const json::Value& value = amp.loss_scale;
  if (value.is_null())
    return amp.opt_level == AmpLevel::O3 ? std::optional<double>(1.0) : std::nullopt;
  if (value.is_string() && value.as_string() == "dynamic") return std::nullopt;
  if (value.is_number() && value.as_double() > 0) return value.as_double();
  problems.add(origins.place("amp.loss_scale"),
               "amp.loss_scale",
               fmt::format("expected \"dynamic\" or a number above 0, found {}", value.dump()),
               "remove it");
  return std::nullopt;
}

}  // namespace

std::optional<Fp16Options> amp_scaling(const AmpOptions& amp,
                                       config::Problems& problems,
                                       const config::Origins& origins) {
  const std::optional<double> fixed = amp_scale(amp, problems, origins);
  if (amp.opt_level == AmpLevel::O0) return std::nullopt;
  return fixed ? fixed_scaling(*fixed) : apex_scaling();
}

void Bf16Options::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Train in bf16: weights and activations are bf16; master weights, moments and "
                   "gradient accumulation stay fp32."});
  f.field("bf16_master_weights_and_grads",
          bf16_master_weights_and_grads,
          {.text = "Keep no fp32 master weights: updates change the bf16 weights directly, and "
                   "gradients are accumulated in bf16 unless data_types.grad_accum_dtype is set."});
  f.field("bf16_optimizer_states",
          bf16_optimizer_states,
          {.text = "Store the moments in bf16 as well; requires bf16_master_weights_and_grads."});
}

void AmpOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "16-bit training as in Apex, with the nearest equivalent of opt_level."});
  f.choice("opt_level",
           opt_level,
           kAmpLevels,
           {.text = "O0: fp32. O1, O2: fp16 with fp32 master weights. O3: the same with a loss "
                    "scale of 1."});
  f.field("loss_scale",
          loss_scale,
          {.text = "Static loss scale, or \"dynamic\" for Apex's rule.",
           .choices = {"\"dynamic\"", "a number above 0"},
           .default_text = "dynamic; 1 with O3",
           .type = "string or number"});
}

void TorchAutocastOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Equivalent to bf16.enabled or fp16.enabled, depending on dtype: layers choose "
                   "their dtypes "
                   "themselves."});
  f.choice("dtype", dtype, kAutocastTypes, {.text = "Dtype of weights and activations."});
}

void DataTypesOptions::describe(config::Fields& f) {
  f.choice("grad_accum_dtype",
           grad_accum_dtype,
           kAccumulationTypes,
           {.text = "Dtype of the gradient accumulation buffer; bf16 is rounded after every "
                    "accumulation step.",
            .default_text = "fp32"});
}

}  // namespace tessera::optim
