// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's learning rates with its parameters; n is the number of steps or samples before the
// update. Types: Megatron {lr_decay_style}, and two of the styles under their own names.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "tessera/optim/curve.h"
#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"

namespace tessera::interop {
namespace {

/// A length given in steps or in samples.
struct Length {
  std::optional<std::int64_t> steps, samples;

  void describe(config::Fields& f, const std::string& key, double min) {
    f.field(key + "_iters", steps, {.unit = "steps", .min = min});
    f.field(key + "_samples", samples, {.unit = "samples", .min = min});
  }
  [[nodiscard]] bool given() const { return steps || samples; }
  [[nodiscard]] std::int64_t value() const { return samples.value_or(steps.value_or(0)); }
};

enum class DecayStyle : std::uint8_t { Linear, Cosine, InverseSquareRoot, Constant, Wsd };
constexpr auto kDecayStyles = std::to_array<config::Named<DecayStyle>>(
    {{DecayStyle::Linear, "linear"},
     {DecayStyle::Cosine, "cosine"},
     {DecayStyle::InverseSquareRoot, "inverse-square-root"},
     {DecayStyle::Constant, "constant"},
     {DecayStyle::Wsd, "WSD"}});
enum class TailStyle : std::uint8_t { Exponential, Linear, Cosine, MinusSqrt };
constexpr auto kTailStyles =
    std::to_array<config::Named<TailStyle>>({{TailStyle::Exponential, "exponential"},
                                             {TailStyle::Linear, "linear"},
                                             {TailStyle::Cosine, "cosine"},
                                             {TailStyle::MinusSqrt, "minus_sqrt"}});

struct Options {
  DecayStyle style = DecayStyle::Linear;
  double first = 0.0, lowest = 0.0;
  Length warmup, decay, tail;
  std::optional<double> warmup_fraction;
  std::optional<TailStyle> tail_style;
  bool override_checkpoint = true, use_checkpoint = false;

  void describe_all(config::Fields& f) {
    f.field("lr_warmup_init", first, {.min = 0});
    f.field("min_lr", lowest, {.min = 0});
    warmup.describe(f, "lr_warmup", 0);
    f.field("lr_warmup_fraction", warmup_fraction, {.min = 0, .max = 1});
    decay.describe(f, "lr_decay", 1);
    // A resumed run follows its configuration, so that only one value of each is possible.
    f.field("override_opt_param_scheduler", override_checkpoint, {});
    f.field("use_checkpoint_opt_param_scheduler", use_checkpoint, {});
  }
  void describe_tail(config::Fields& f) {
    tail.describe(f, "lr_wsd_decay", 1);
    f.choice("lr_wsd_decay_style", tail_style, kTailStyles, {});
  }
};

struct AnyOptions : Options {
  void describe(config::Fields& f) {
    f.choice("lr_decay_style", style, kDecayStyles, {});
    describe_all(f);
    describe_tail(f);
  }
};
struct WsdOptions : Options {
  WsdOptions() { style = DecayStyle::Wsd; }
  void describe(config::Fields& f) {
    describe_all(f);
    describe_tail(f);
  }
};
struct InverseOptions : Options {
  InverseOptions() { style = DecayStyle::InverseSquareRoot; }
  void describe(config::Fields& f) { describe_all(f); }
};

/// Lengths in one unit; a `decay` of 0 is not known yet.
struct Shape {
  DecayStyle style = DecayStyle::Linear;
  TailStyle tail_style = TailStyle::Exponential;
  double first = 0.0, peak = 0.0, lowest = 0.0;
  double warmup = 0.0, decay = 0.0, tail = 0.0;

  [[nodiscard]] double rate(double n) const {
    if (warmup > 0.0 && n <= warmup) return first + (peak - first) * n / warmup;
    if (style == DecayStyle::Constant) return peak;
    if (n > decay) return lowest;
    if (style == DecayStyle::InverseSquareRoot)
      return std::max(lowest, peak * std::sqrt(std::max(1.0, warmup)) / std::sqrt(n));
    return lowest + (peak - lowest) * share(n);
  }

 private:
  /// Returns the fraction of the decay that remains.
  [[nodiscard]] double share(double n) const {
    if (style == DecayStyle::Wsd)
      return n <= decay - tail ? 1.0 : tail_share((n - (decay - tail)) / tail);
    const double way = (n - warmup) / std::max(1.0, decay - warmup);
    return style == DecayStyle::Linear ? 1.0 - way : optim::half_cosine(way);
  }
  [[nodiscard]] double tail_share(double way) const {
    if (tail_style == TailStyle::Linear) return 1.0 - way;
    if (tail_style == TailStyle::Cosine) return optim::half_cosine(way);
    if (tail_style == TailStyle::MinusSqrt) return 1.0 - std::sqrt(way);
    return 2.0 * std::pow(0.5, way) - 1.0;
  }
};

/// Reads the lengths and reports contradictions.
class Maker {
 public:
  Maker(const Options& options,
        const json::Value& params,
        const optim::ScheduleContext& context,
        config::Problems& problems)
      : o_(options), params_(params), context_(context), problems_(problems) {}

  std::unique_ptr<optim::Schedule> make() {
    const bool in_samples = count_in_samples();
    const Shape shape = shape_of(in_samples);
    check_rates();
    check_style();
    check_resume();
    const auto warmup = static_cast<std::int64_t>(std::ceil(shape.warmup));
    optim::check_warmup(warmup, o_.decay.value(), key("lr_decay", o_.decay), params_, problems_);
    if (o_.style == DecayStyle::Wsd) {
      optim::check_tail(warmup,
                        o_.tail.value(),
                        static_cast<std::int64_t>(shape.decay),
                        key("lr_wsd_decay", o_.tail),
                        params_,
                        problems_);
    }
    if (!in_samples) {
      return std::make_unique<optim::Curve>(
          warmup, [shape](std::int64_t t) { return shape.rate(static_cast<double>(t)); });
    }
    const auto samples_before = context_.samples_before;
    return std::make_unique<optim::Curve>(
        updates_within(warmup), [shape, samples_before](std::int64_t t) {
          return shape.rate(static_cast<double>(samples_before(t + 1)));
        });
  }

 private:
  static std::string key(const char* name, const Length& length) {
    return std::string(name) + (length.samples ? "_samples" : "_iters");
  }

  void refuse(const std::string& key, const std::string& what, const std::string& fix) {
    problems_.add(optim::place_of(params_, key), key, what, fix);
  }

  bool count_in_samples() {
    std::string in_steps, in_samples;
    const auto look = [&](const char* name, const Length& length) {
      if (length.steps) in_steps = std::string(name) + "_iters";
      if (length.samples) in_samples = std::string(name) + "_samples";
    };
    look("lr_warmup", o_.warmup);
    look("lr_decay", o_.decay);
    look("lr_wsd_decay", o_.tail);
    if (in_samples.empty()) return false;
    if (!in_steps.empty()) {
      refuse(in_samples,
             fmt::format("counts samples, and {} counts steps", in_steps),
             "give all lengths in steps or all in samples");
      return false;
    }
    if (context_.samples_before) return true;
    refuse(in_samples,
           "needs the number of samples per update, which is not known here",
           "count in steps");
    return false;
  }

  Shape shape_of(bool in_samples) {
    Shape shape{.style = o_.style,
                .tail_style = o_.tail_style.value_or(TailStyle::Exponential),
                .first = o_.first,
                .peak = context_.base_lr,
                .lowest = o_.lowest,
                .warmup = static_cast<double>(o_.warmup.value()),
                .tail = static_cast<double>(std::max<std::int64_t>(1, o_.tail.value()))};
    const std::int64_t run = in_samples && context_.max_steps > 0
                                 ? context_.samples_before(context_.max_steps + 1)
                                 : context_.max_steps;
    shape.decay = static_cast<double>(o_.decay.given() ? o_.decay.value() : run);
    if (o_.warmup_fraction) shape.warmup = *o_.warmup_fraction * shape.decay;
    return shape;
  }

  void check_rates() {
    const double peak = context_.base_lr;
    const auto check = [&](const char* name, double rate) {
      if (rate <= peak) return;
      refuse(name,
             fmt::format("{} is above the optimizer's rate of {}", rate, peak),
             fmt::format("lower {} or raise optimizer.lr", name));
    };
    check("lr_warmup_init", o_.first);
    check("min_lr", o_.lowest);
  }

  void check_style() {
    if (o_.warmup_fraction && o_.warmup.given()) {
      refuse("lr_warmup_fraction",
             fmt::format("must not be given together with {}", key("lr_warmup", o_.warmup)),
             "give only one of them");
    }
    const bool wsd = o_.style == DecayStyle::Wsd;
    if (wsd && !o_.tail.given())
      refuse("lr_wsd_decay_iters", "is missing", "give the length of the decay at the end");
    if (!wsd && (o_.tail.given() || o_.tail_style)) {
      refuse(o_.tail.given() ? key("lr_wsd_decay", o_.tail) : "lr_wsd_decay_style",
             fmt::format("has no effect with lr_decay_style {}",
                         config::name_of(kDecayStyles, o_.style)),
             "remove it, or choose lr_decay_style \"WSD\"");
    }
    if (o_.style == DecayStyle::InverseSquareRoot && o_.warmup.value() == 0 &&
        o_.warmup_fraction.value_or(0.0) == 0.0) {
      refuse("lr_warmup_iters",
             "is missing: inverse-square-root falls with sqrt(warm-up / n)",
             "give lr_warmup_iters, lr_warmup_samples or lr_warmup_fraction");
    }
  }

  void check_resume() {
    const char* const fix = "remove it: a resumed run lists what changed";
    if (!o_.override_checkpoint) {
      refuse("override_opt_param_scheduler",
             "false is not supported: a resumed run follows its configuration",
             fix);
    }
    if (o_.use_checkpoint) {
      refuse("use_checkpoint_opt_param_scheduler",
             "true is not supported: a resumed run follows its configuration",
             fix);
    }
  }

  /// Returns the number of updates that begin within `samples` samples.
  [[nodiscard]] std::int64_t updates_within(std::int64_t samples) const {
    std::int64_t low = 0, high = 1;
    while (context_.samples_before(high + 1) < samples)
      high *= 2;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (context_.samples_before(middle + 1) < samples) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const Options& o_;
  const json::Value& params_;
  const optim::ScheduleContext& context_;
  config::Problems& problems_;
};

template <class Styled>
std::unique_ptr<optim::Schedule> make(const json::Value& params,
                                      const optim::ScheduleContext& context,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  const auto options = optim::read_params<Styled>(params, problems, origins);
  return Maker(options, params, context, problems).make();
}

const bool kMegatronSchedules = optim::schedules().add("Megatron", make<AnyOptions>) &&
                                optim::schedules().add("WSD", make<WsdOptions>) &&
                                optim::schedules().add("inverse-square-root", make<InverseOptions>);

}  // namespace
}  // namespace tessera::interop
