// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/loss_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::optim {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// The largest exponent of fp32: a larger scale would make every loss infinite.
constexpr double kMostPower = 127;

/// A key that only some scalers read.
struct Owned {
  const char* key;
  bool given;
  std::vector<ScalerKind> scalers;
};

constexpr auto kScalers =
    std::to_array<config::Named<ScalerKind>>({{ScalerKind::DeepSpeed, "deepspeed"},
                                              {ScalerKind::Megatron, "megatron"},
                                              {ScalerKind::BMTrain, "bmtrain"}});

std::string names_of(const std::vector<ScalerKind>& scalers) {
  std::vector<std::string> out;
  for (const ScalerKind scaler : scalers)
    out.push_back(config::name_of(kScalers, scaler));
  return text::join(out, " or ");
}

std::vector<Owned> owned_keys(const Fp16Options& o) {
  return {{"loss_scale_window", o.loss_scale_window.has_value(), {ScalerKind::DeepSpeed}},
          {"hysteresis", o.hysteresis.has_value(), {ScalerKind::DeepSpeed, ScalerKind::Megatron}},
          {"consecutive_hysteresis", o.consecutive_hysteresis.has_value(), {ScalerKind::DeepSpeed}},
          {"min_loss_scale",
           o.min_loss_scale.has_value(),
           {ScalerKind::DeepSpeed, ScalerKind::BMTrain}},
          {"loss_scale_factor",
           o.loss_scale_factor.has_value(),
           {ScalerKind::DeepSpeed, ScalerKind::BMTrain}},
          {"growth_factor", o.growth_factor.has_value(), {ScalerKind::Megatron}},
          {"backoff_factor", o.backoff_factor.has_value(), {ScalerKind::Megatron}},
          {"growth_interval", o.growth_interval.has_value(), {ScalerKind::Megatron}},
          {"min_scale", o.min_scale.has_value(), {ScalerKind::Megatron}},
          {"max_scale", o.max_scale.has_value(), {ScalerKind::Megatron}},
          {"loss_scale_steps", o.loss_scale_steps.has_value(), {ScalerKind::BMTrain}},
          {"max_loss_scale", o.max_loss_scale.has_value(), {ScalerKind::BMTrain}}};
}

double start_of(const Fp16Options& o) {
  if (o.initial_scale) return *o.initial_scale;
  return std::ldexp(1.0, static_cast<int>(o.initial_scale_power.value_or(16)));
}

double number_of(const json::Value& state, std::string_view key) {
  const json::Value* value = state.find(key);
  TESSERA_REQUIRE(value != nullptr && value->is_number(),
                  Format,
                  fmt::format("the state of the loss scaler has no number \"{}\"", key),
                  "resume from another checkpoint");
  return value->as_double();
}

std::int64_t count_of(const json::Value& state, std::string_view key) {
  const double number = number_of(state, key);
  TESSERA_REQUIRE(number == std::floor(number) && std::abs(number) < 0x1p53,
                  Format,
                  fmt::format("the loss scaler's \"{}\" is {}, not a count", key, number),
                  "resume from another checkpoint");
  return static_cast<std::int64_t>(number);
}

void describe_start(Fp16Options& o, config::Fields& f) {
  f.field("enabled",
          o.enabled,
          {.text = "Train in fp16 with loss scaling: weights and activations are fp16; master "
                   "weights, moments and gradient accumulation stay fp32."});
  f.field("auto_cast",
          o.auto_cast,
          {.text = "Cast floating-point inputs of the model to fp16; token ids are not cast."});
  f.field("loss_scale",
          o.loss_scale,
          {.text = "Static loss scale; 0 selects dynamic loss scaling.", .min = 0});
  f.choice("scaler",
           o.scaler,
           kScalers,
           {.text = "Rule of dynamic loss scaling; megatron is also the rule of Colossal-AI."});
  f.field("initial_scale_power",
          o.initial_scale_power,
          {.text = "Power of 2 at which a dynamic loss scale starts.",
           .min = 0,
           .max = kMostPower,
           .default_text = "16"});
  f.field("initial_scale",
          o.initial_scale,
          {.text = "Initial dynamic loss scale, instead of initial_scale_power.",
           .min = 0,
           .above_min = true,
           .default_text = "2 to the power of initial_scale_power"});
}

void describe_deepspeed(Fp16Options& o, config::Fields& f) {
  f.field(
      "loss_scale_window",
      o.loss_scale_window,
      {.text = "deepspeed: number of steps without an overflow after which the scale is doubled.",
       .unit = "steps",
       .min = 1,
       .default_text = "1000"});
  f.field("hysteresis",
          o.hysteresis,
          {.text = "deepspeed, megatron: number of overflows since the scale last grew until it is "
                   "lowered (not used by deepspeed if zero_optimization.stage is 0).",
           .unit = "overflows",
           .min = 1,
           .default_text = "2"});
  f.field("consecutive_hysteresis",
          o.consecutive_hysteresis,
          {.text = "deepspeed: only count consecutive overflows for hysteresis (not used if "
                   "zero_optimization.stage is 0).",
           .default_text = "false"});
  f.field("min_loss_scale",
          o.min_loss_scale,
          {.text = "deepspeed, bmtrain: minimum loss scale.",
           .min = 0,
           .above_min = true,
           .default_text = "1"});
  f.field("fp16_master_weights_and_grads",
          o.fp16_master_weights_and_grads,
          {.text = "Keep no fp32 master weights: updates change the fp16 weights directly. "
                   "Gradients are accumulated in fp32, because fp16 sums overflow."});
}

void describe_bmtrain(Fp16Options& o, config::Fields& f) {
  f.field("loss_scale_factor",
          o.loss_scale_factor,
          {.text = "bmtrain, deepspeed: factor by which the scale is multiplied or divided.",
           .min = 1,
           .above_min = true,
           .default_text = "2"});
  f.field("loss_scale_steps",
          o.loss_scale_steps,
          {.text = "bmtrain: number of steps without a change after which the scale grows.",
           .unit = "steps",
           .min = 1,
           .default_text = "1024"});
  f.field("max_loss_scale",
          o.max_loss_scale,
          {.text = "bmtrain: scale from which it does not grow any more.",
           .min = 0,
           .above_min = true,
           .default_text = "none"});
}

void describe_megatron(Fp16Options& o, config::Fields& f) {
  f.field("growth_factor",
          o.growth_factor,
          {.text = "megatron: factor by which the scale grows.",
           .min = 1,
           .above_min = true,
           .default_text = "2"});
  f.field("backoff_factor",
          o.backoff_factor,
          {.text = "megatron: factor by which the scale shrinks; below 1.",
           .min = 0,
           .max = 1,
           .above_min = true,
           .default_text = "0.5"});
  f.field(
      "growth_interval",
      o.growth_interval,
      {.text =
           "megatron: number of consecutive steps without an overflow after which the scale grows.",
       .unit = "steps",
       .min = 1,
       .default_text = "1000"});
  f.field(
      "min_scale",
      o.min_scale,
      {.text = "megatron: minimum loss scale.", .min = 0, .above_min = true, .default_text = "1"});
  f.field("max_scale",
          o.max_scale,
          {.text = "megatron: maximum loss scale (Colossal-AI).",
           .min = 0,
           .above_min = true,
           .default_text = "none"});
}

}  // namespace

void Fp16Options::describe(config::Fields& f) {
  describe_start(*this, f);
  describe_deepspeed(*this, f);
  describe_bmtrain(*this, f);
  describe_megatron(*this, f);
}

Fp16Options Fp16Options::completed(int zero_stage) const {
  Fp16Options out = *this;
  if (!enabled || loss_scale > 0) return out;
  const auto fill = [](auto& option, auto value) {
    if (!option) option = value;
  };
  if (!initial_scale) fill(out.initial_scale_power, 16);
  if (scaler == ScalerKind::DeepSpeed) {
    fill(out.loss_scale_window, 1000);
    fill(out.min_loss_scale, 1.0);
    if (zero_stage > 0) fill(out.hysteresis, 2);
    if (zero_stage > 0) fill(out.consecutive_hysteresis, false);
  } else if (scaler == ScalerKind::Megatron) {
    fill(out.growth_interval, 1000);
    fill(out.hysteresis, 2);
    fill(out.growth_factor, 2.0);
    fill(out.backoff_factor, 0.5);
    fill(out.min_scale, 1.0);
    return out;
  } else {
    fill(out.loss_scale_steps, 1024);
    fill(out.min_loss_scale, 1.0);
  }
  fill(out.loss_scale_factor, 2.0);
  return out;
}

void check_fp16(const Fp16Options& options,
                int zero_stage,
                const std::string& path,
                config::Problems& problems,
                const config::Origins& origins,
                std::vector<std::string>& notes) {
  if (!options.enabled) return;
  const auto at = [&](std::string_view key) { return json::join_path(path, key); };
  const auto add = [&](std::string_view key, std::string what, std::string fix) {
    problems.add(origins.place(at(key)), at(key), std::move(what), std::move(fix));
  };
  const auto note = [&](std::string_view key, const std::string& why) {
    notes.push_back(fmt::format("{} has no effect: {}", at(key), why));
  };
  if (options.auto_cast) note("auto_cast", "token ids are not cast");
  const bool fixed = options.loss_scale > 0;
  for (const Owned& owned : owned_keys(options)) {
    if (!owned.given) continue;
    const bool read = std::find(owned.scalers.begin(), owned.scalers.end(), options.scaler) !=
                      owned.scalers.end();
    if (!read) {
      add(owned.key,
          fmt::format("the scaler \"{}\" does not use it",
                      config::name_of(kScalers, options.scaler)),
          fmt::format("remove it, or set {} to {}", at("scaler"), names_of(owned.scalers)));
    } else if (fixed) {
      note(owned.key, fmt::format("{} is fixed", at("loss_scale")));
    }
  }
  if (fixed) return;
  if (options.initial_scale && options.initial_scale_power) {
    add("initial_scale", "initial_scale_power is also given", "remove one of the two");
  }
  if (options.backoff_factor == 1.0) {
    add("backoff_factor", "the scale would never shrink", "choose a number below 1, such as 0.5");
  }
  if (options.scaler == ScalerKind::DeepSpeed && zero_stage == 0) {
    const char* why = "ZeRO stage 0 lowers the scale at every overflow, as DeepSpeed does";
    if (options.hysteresis) note("hysteresis", why);
    if (options.consecutive_hysteresis) note("consecutive_hysteresis", why);
  }
  const double start = start_of(options);
  const char* start_key = options.initial_scale ? "initial_scale" : "initial_scale_power";
  const bool megatron = options.scaler == ScalerKind::Megatron;
  const double smallest = (megatron ? options.min_scale : options.min_loss_scale).value_or(1.0);
  const double largest =
      (megatron ? options.max_scale : options.max_loss_scale).value_or(kInfinite);
  if (start < smallest || start > largest) {
    add(start_key,
        fmt::format(
            "the scale would start at {}, outside the range {} to {}", start, smallest, largest),
        "choose an initial scale within the bounds");
  }
}

LossScaler::LossScaler(const Fp16Options& options, int zero_stage) : largest_(kInfinite) {
  if (options.loss_scale > 0) {
    scale_ = options.loss_scale;
    return;
  }
  Fp16Options all = options;
  all.enabled = true;
  all = all.completed(zero_stage);
  name_ = config::name_of(kScalers, options.scaler);
  scale_ = start_of(all);
  if (options.scaler == ScalerKind::Megatron) {
    rule_ = Rule::Megatron;
    growth_ = *all.growth_factor;
    backoff_ = *all.backoff_factor;
    smallest_ = *all.min_scale;
    largest_ = all.max_scale.value_or(kInfinite);
    interval_ = *all.growth_interval;
    hysteresis_ = *all.hysteresis;
  } else {
    growth_ = *all.loss_scale_factor;
    smallest_ = *all.min_loss_scale;
    largest_ = all.max_loss_scale.value_or(kInfinite);
    if (options.scaler == ScalerKind::BMTrain) {
      rule_ = Rule::BMTrain;
      interval_ = *all.loss_scale_steps;
    } else {
      rule_ = zero_stage > 0 ? Rule::DeepSpeed : Rule::DeepSpeedStage0;
      interval_ = *all.loss_scale_window;
      hysteresis_ = all.hysteresis.value_or(1);
      consecutive_ = all.consecutive_hysteresis.value_or(false);
    }
  }
  TESSERA_ASSERT(interval_ > 0 && hysteresis_ > 0);
  hysteresis_left_ = hysteresis_;
}

void LossScaler::update(bool overflow) {
  switch (rule_) {
    case Rule::Static:
      return;
    case Rule::DeepSpeed:
      return update_deepspeed(overflow);
    case Rule::DeepSpeedStage0:
      return update_deepspeed_stage0(overflow);
    case Rule::Megatron:
      return update_megatron(overflow);
    case Rule::BMTrain:
      return update_bmtrain(overflow);
  }
}

void LossScaler::update_deepspeed(bool overflow) {
  const std::int64_t now = iteration_++;
  if (!overflow) {
    const bool grows = (now - last_overflow_) % interval_ == 0;
    if (consecutive_ || grows) hysteresis_left_ = hysteresis_;
    if (grows) scale_ *= growth_;
    return;
  }
  last_overflow_ = now;
  if (hysteresis_left_ > 1) {
    --hysteresis_left_;
    return;
  }
  const bool at_smallest = scale_ == smallest_;
  scale_ = std::max(scale_ / growth_, smallest_);
  TESSERA_REQUIRE(!at_smallest,
                  Numeric,
                  fmt::format("gradients overflow fp16 at the minimum loss scale of {}, which "
                              "cannot be lowered further",
                              smallest_),
                  "use bf16 (\"bf16\": {\"enabled\": true}), a smaller learning rate, or a smaller "
                  "fp16.min_loss_scale");
}

void LossScaler::update_deepspeed_stage0(bool overflow) {
  const std::int64_t now = iteration_++;
  if (overflow) {
    last_overflow_ = now;
    scale_ = std::max(scale_ / growth_, smallest_);
    return;
  }
  const std::int64_t clean = now - last_overflow_ - 1;
  if (clean > 0 && clean % interval_ == 0) scale_ *= growth_;
}

void LossScaler::update_megatron(bool overflow) {
  ++iteration_;
  if (overflow) {
    clean_steps_ = 0;
    if (hysteresis_left_ > 0) --hysteresis_left_;
    if (hysteresis_left_ == 0) scale_ = std::max(scale_ * backoff_, smallest_);
  } else if (++clean_steps_ >= interval_) {
    clean_steps_ = 0;
    hysteresis_left_ = hysteresis_;
    scale_ = std::min(scale_ * growth_, largest_);
  }
}

// The bounds do not clamp: the scale may exceed each of them by one step.
void LossScaler::update_bmtrain(bool overflow) {
  ++iteration_;
  if (!overflow) ++clean_steps_;
  const bool shrinks = overflow && scale_ > smallest_;
  const bool grows = !overflow && clean_steps_ >= interval_ && scale_ < largest_;
  if (!shrinks && !grows) return;
  scale_ = shrinks ? scale_ / growth_ : scale_ * growth_;
  clean_steps_ = 0;
}

json::Value LossScaler::state() const {
  return json::Value::object({{"scaler", json::Value::string(name_)},
                              {"scale", json::Value::number(scale_)},
                              {"iteration", json::Value::integer(iteration_)},
                              {"last_overflow", json::Value::integer(last_overflow_)},
                              {"hysteresis_left", json::Value::integer(hysteresis_left_)},
                              {"clean_steps", json::Value::integer(clean_steps_)}});
}

void LossScaler::restore(const json::Value& state) {
  const json::Value* scaler = state.find("scaler");
  TESSERA_REQUIRE(scaler != nullptr && scaler->is_string(),
                  Format,
                  "the state of the loss scaler does not say which scaler wrote it",
                  "resume from another checkpoint");
  const double scale = number_of(state, "scale");
  TESSERA_REQUIRE(scale > 0 && std::isfinite(scale),
                  Format,
                  fmt::format("the loss scaler's \"scale\" is {}", scale),
                  "resume from another checkpoint");
  if (rule_ == Rule::Static) return;
  scale_ = scale;
  if (scaler->as_string() != name_) return;
  iteration_ = count_of(state, "iteration");
  last_overflow_ = count_of(state, "last_overflow");
  // The configuration may have been changed to a smaller hysteresis.
  hysteresis_left_ = std::min(count_of(state, "hysteresis_left"), hysteresis_);
  clean_steps_ = count_of(state, "clean_steps");
}

}  // namespace tessera::optim
