// SPDX-License-Identifier: Apache-2.0
// Hugging Face's schedules with its parameters: t = update - 1, factors on the optimizer's rate.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/bmtrain.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

struct WarmupOptions {
  std::int64_t warmup = 0;

  void describe(config::Fields& f) {
    f.field("num_warmup_steps",
            warmup,
            {.text = "Number of warm-up steps.", .unit = "steps", .min = 0});
  }
};
/// The library passes the length of the training to every schedule.
struct EndlessOptions : WarmupOptions {
  std::optional<std::int64_t> unused_total;

  void describe(config::Fields& f) {
    WarmupOptions::describe(f);
    f.field(
        "num_training_steps",
        unused_total,
        {.text =
             "Accepted because all of the library's schedules have it; this schedule has no end.",
         .unit = "steps"});
  }
};
struct InverseSqrtOptions : EndlessOptions {
  std::optional<std::int64_t> timescale;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field(
        "timescale",
        timescale,
        {.text =
             "Number of steps after the warm-up in which the learning rate falls to 1 / sqrt(2).",
         .unit = "steps",
         .min = 1,
         .default_text = "num_warmup_steps, or 10000 without a warm-up"});
  }
};
struct DecayOptions : WarmupOptions {
  std::int64_t total = 0;

  void describe(config::Fields& f) {
    WarmupOptions::describe(f);
    f.field("num_training_steps",
            total,
            {.text = "Step at which the learning rate reaches its final value.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
  }
};
struct CosineOptions : DecayOptions {
  double cycles = 0.5;

  void describe(config::Fields& f) {
    DecayOptions::describe(f);
    f.field("num_cycles",
            cycles,
            {.text = "Number of cosine waves; half a wave ends at the lowest learning rate.",
             .min = 0,
             .above_min = true});
  }
};
struct RestartOptions : DecayOptions {
  std::int64_t cycles = 1;

  void describe(config::Fields& f) {
    DecayOptions::describe(f);
    f.field("num_cycles",
            cycles,
            {.text = "Number of half waves, each starting from the full learning rate.", .min = 1});
  }
};
struct PolynomialOptions : DecayOptions {
  double end = 1e-7, power = 1.0;

  void describe(config::Fields& f) {
    DecayOptions::describe(f);
    f.field("lr_end", end, {.text = "Learning rate at the end.", .min = 0});
    f.field("power", power, {.text = "Exponent of the polynomial decay.", .min = 0});
  }
};
struct LowestOptions : CosineOptions {
  std::optional<double> lowest, lowest_share;

  void describe(config::Fields& f) {
    CosineOptions::describe(f);
    f.field("min_lr", lowest, {.text = "Lowest learning rate.", .min = 0});
    f.field("min_lr_rate",
            lowest_share,
            {.text = "Lowest learning rate as a fraction of the full one.", .min = 0});
  }
};
struct WarmupLowestOptions : LowestOptions {
  std::optional<double> first_share;

  void describe(config::Fields& f) {
    LowestOptions::describe(f);
    f.field("warmup_lr_rate",
            first_share,
            {.text = "Initial learning rate as a fraction of the full one.",
             .min = 0,
             .default_text = "1 / num_warmup_steps"});
  }
};
enum class DecayShape : std::uint8_t { Linear, Cosine, SquareRoot };
constexpr auto kDecayShapes =
    std::to_array<config::Named<DecayShape>>({{DecayShape::Linear, "linear"},
                                              {DecayShape::Cosine, "cosine"},
                                              {DecayShape::SquareRoot, "1-sqrt"}});

struct StableOptions : WarmupOptions {
  std::int64_t decay = 0;
  std::optional<std::int64_t> stable, total;
  DecayShape warmup_type = DecayShape::Linear, decay_type = DecayShape::Cosine;
  double lowest_share = 0.0, cycles = 0.5;

  void describe(config::Fields& f) {
    WarmupOptions::describe(f);
    f.field(
        "num_decay_steps",
        decay,
        {.text = "Number of decay steps at the end.", .unit = "steps", .min = 0, .required = true});
    f.field("num_stable_steps",
            stable,
            {.text = "Number of steps at the full learning rate.",
             .unit = "steps",
             .min = 0,
             .default_text = "what remains of the total"});
    f.field("num_training_steps",
            total,
            {.text = "Total of warm-up, stable and decay steps.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
    f.choice("warmup_type", warmup_type, kDecayShapes, {.text = "Shape of the warm-up."});
    f.choice("decay_type", decay_type, kDecayShapes, {.text = "Shape of the decay."});
    f.field("min_lr_ratio",
            lowest_share,
            {.text = "Initial and final learning rate as a fraction of the full one.", .min = 0});
    f.field("num_cycles",
            cycles,
            {.text = "Number of waves of a cosine decay.", .min = 0, .above_min = true});
  }
};
using Factor = std::function<double(std::int64_t t)>;

/// Linear from 0, then `after` of step t.
std::unique_ptr<Schedule> warmed(double base_lr, std::int64_t warmup, Factor after) {
  return std::make_unique<Curve>(
      warmup, [base_lr, warmup, after = std::move(after)](std::int64_t t) {
        return base_lr * (t < warmup ? static_cast<double>(t) / at_least_one(warmup) : after(t));
      });
}

/// Returns the fraction of the way from the end of the warm-up to the total.
double way(const DecayOptions& options, std::int64_t t) {
  return static_cast<double>(t - options.warmup) / at_least_one(options.total - options.warmup);
}

double waves(double cycles, double way) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * way));
}

/// Returns 1 if `share` is 1, `lowest` if it is 0.
double at_least(double lowest, double share) {
  return share * (1.0 - lowest) + lowest;
}

template <class Options>
Options read_decay(const json::Value& params,
                   const ScheduleContext& context,
                   config::Problems& problems,
                   config::Origins& origins) {
  Options options = read_params<Options>(params, problems, origins);
  if (options.total == 0) options.total = context.max_steps;
  return options;
}

std::unique_ptr<Schedule> make_constant_with_warmup(const json::Value& params,
                                                    const ScheduleContext& context,
                                                    config::Problems& problems,
                                                    config::Origins& origins) {
  const auto options = read_params<EndlessOptions>(params, problems, origins);
  return warmed(context.base_lr, options.warmup, [](std::int64_t) { return 1.0; });
}

std::unique_ptr<Schedule> make_linear(const json::Value& params,
                                      const ScheduleContext& context,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  if (are_bmtrain_params(params)) return make_bmtrain_linear(params, context, problems, origins);
  const auto o = read_decay<DecayOptions>(params, context, problems, origins);
  return warmed(context.base_lr, o.warmup, [o](std::int64_t t) {
    return std::max(0.0, static_cast<double>(o.total - t) / at_least_one(o.total - o.warmup));
  });
}

/// Rises again after its total, as in the library.
std::unique_ptr<Schedule> make_cosine(const json::Value& params,
                                      const ScheduleContext& context,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  if (are_bmtrain_params(params)) return make_bmtrain_cosine(params, context, problems, origins);
  const auto o = read_decay<CosineOptions>(params, context, problems, origins);
  return warmed(
      context.base_lr, o.warmup, [o](std::int64_t t) { return waves(o.cycles, way(o, t)); });
}

std::unique_ptr<Schedule> make_cosine_with_restarts(const json::Value& params,
                                                    const ScheduleContext& context,
                                                    config::Problems& problems,
                                                    config::Origins& origins) {
  const auto o = read_decay<RestartOptions>(params, context, problems, origins);
  return warmed(context.base_lr, o.warmup, [o](std::int64_t t) {
    const double share = way(o, t);
    if (share >= 1.0) return 0.0;
    return half_cosine(std::fmod(static_cast<double>(o.cycles) * share, 1.0));
  });
}

std::unique_ptr<Schedule> make_polynomial(const json::Value& params,
                                          const ScheduleContext& context,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  const auto o = read_decay<PolynomialOptions>(params, context, problems, origins);
  const double base_lr = context.base_lr;
  if (o.end >= base_lr) {
    problems.add(place_of(params, "lr_end"),
                 "lr_end",
                 fmt::format("the end {} is not below the optimizer's rate of {}", o.end, base_lr),
                 "lower lr_end or raise optimizer.lr");
  }
  return std::make_unique<Curve>(o.warmup, [o, base_lr](std::int64_t t) {
    if (t < o.warmup) return base_lr * (static_cast<double>(t) / at_least_one(o.warmup));
    if (t > o.total) return o.end;
    return (base_lr - o.end) * std::pow(std::max(0.0, 1.0 - way(o, t)), o.power) + o.end;
  });
}

std::unique_ptr<Schedule> make_inverse_sqrt(const json::Value& params,
                                            const ScheduleContext& context,
                                            config::Problems& problems,
                                            config::Origins& origins) {
  const auto o = read_params<InverseSqrtOptions>(params, problems, origins);
  const std::int64_t scale = o.timescale.value_or(o.warmup > 0 ? o.warmup : 10000);
  return warmed(context.base_lr, o.warmup, [o, scale](std::int64_t t) {
    return 1.0 / std::sqrt(static_cast<double>(t + scale - o.warmup) / static_cast<double>(scale));
  });
}

double lowest_share(const LowestOptions& options,
                    double base_lr,
                    const json::Value& params,
                    config::Problems& problems) {
  const bool both = is_given(params, "min_lr") && is_given(params, "min_lr_rate");
  if (both || (!is_given(params, "min_lr") && !is_given(params, "min_lr_rate"))) {
    problems.add(
        place_of(params, "min_lr"),
        "min_lr",
        both ? "must not be given together with min_lr_rate" : "is missing, and so is min_lr_rate",
        "give only one of them");
  }
  if (!options.lowest) return options.lowest_share.value_or(0.0);
  return base_lr > 0.0 ? *options.lowest / base_lr : 0.0;
}

std::unique_ptr<Schedule> make_cosine_with_min_lr(const json::Value& params,
                                                  const ScheduleContext& context,
                                                  config::Problems& problems,
                                                  config::Origins& origins) {
  const auto o = read_decay<LowestOptions>(params, context, problems, origins);
  const double lowest = lowest_share(o, context.base_lr, params, problems);
  return warmed(context.base_lr, o.warmup, [o, lowest](std::int64_t t) {
    return at_least(lowest, waves(o.cycles, way(o, t)));
  });
}

/// One step ahead of cosine_with_min_lr: the first rate is not 0, and the lowest one is reached at
/// the last step instead of after it.
std::unique_ptr<Schedule> make_cosine_warmup_with_min_lr(const json::Value& params,
                                                         const ScheduleContext& context,
                                                         config::Problems& problems,
                                                         config::Origins& origins) {
  const auto o = read_decay<WarmupLowestOptions>(params, context, problems, origins);
  const double base_lr = context.base_lr, lowest = lowest_share(o, base_lr, params, problems);
  const auto factor = [o, lowest](std::int64_t t) {
    if (t >= o.warmup) return at_least(lowest, waves(o.cycles, way(o, t + 1)));
    if (!o.first_share) return static_cast<double>(t + 1) / at_least_one(o.warmup);
    return at_least(*o.first_share, static_cast<double>(t) / at_least_one(o.warmup - 1));
  };
  return std::make_unique<Curve>(o.warmup,
                                 [base_lr, factor](std::int64_t t) { return base_lr * factor(t); });
}

/// Falls from 1 at 0 to 0 at 1.
double fall(DecayShape shape, double way, double cycles) {
  if (shape == DecayShape::Linear) return 1.0 - way;
  return shape == DecayShape::Cosine ? waves(cycles, way) : 1.0 - std::sqrt(way);
}

/// Rises from 0 at 0 to 1 at 1.
double rise(DecayShape shape, double way) {
  return 1.0 - (shape == DecayShape::SquareRoot ? std::sqrt(1.0 - way) : fall(shape, way, 0.5));
}

/// Returns the steps at the full rate: the given number, or what remains of the total.
std::int64_t stable_steps(const StableOptions& o,
                          std::int64_t max_steps,
                          const json::Value& params,
                          config::Problems& problems) {
  const std::int64_t total = o.total.value_or(max_steps);
  if (!o.stable) {
    check_tail(o.warmup, o.decay, total, "num_decay_steps", params, problems);
    // Below 0 if the total lies within the warm-up: then the rate after it is the lowest one.
    return total - o.warmup - o.decay;
  }
  const std::int64_t sum = o.warmup + *o.stable + o.decay;
  if (o.total && *o.total != sum) {
    problems.add(place_of(params, "num_training_steps"),
                 "num_training_steps",
                 fmt::format("is {}, but num_warmup_steps + num_stable_steps + num_decay_steps = "
                             "{} + {} + {} = {}",
                             *o.total,
                             o.warmup,
                             *o.stable,
                             o.decay,
                             sum),
                 "remove num_training_steps or num_stable_steps");
  }
  return *o.stable;
}

std::unique_ptr<Schedule> make_warmup_stable_decay(const json::Value& params,
                                                   const ScheduleContext& context,
                                                   config::Problems& problems,
                                                   config::Origins& origins) {
  const auto o = read_params<StableOptions>(params, problems, origins);
  const std::int64_t full = o.warmup + stable_steps(o, context.max_steps, params, problems);
  const auto factor = [o, full](std::int64_t t) {
    if (t < o.warmup) {
      const double share = static_cast<double>(t) / static_cast<double>(o.warmup);
      return at_least(o.lowest_share, rise(o.warmup_type, share));
    }
    if (t < full) return 1.0;
    if (t >= full + o.decay) return o.lowest_share;
    const double share = static_cast<double>(t - full) / static_cast<double>(o.decay);
    return at_least(o.lowest_share, fall(o.decay_type, share, o.cycles));
  };
  const double base_lr = context.base_lr;
  return std::make_unique<Curve>(o.warmup,
                                 [base_lr, factor](std::int64_t t) { return base_lr * factor(t); });
}

TESSERA_LR_SCHEDULE("constant_with_warmup", make_constant_with_warmup);
TESSERA_LR_SCHEDULE("linear", make_linear);
TESSERA_LR_SCHEDULE("cosine", make_cosine);
TESSERA_LR_SCHEDULE("cosine_with_restarts", make_cosine_with_restarts);
TESSERA_LR_SCHEDULE("polynomial", make_polynomial);
TESSERA_LR_SCHEDULE("inverse_sqrt", make_inverse_sqrt);
TESSERA_LR_SCHEDULE("cosine_with_min_lr", make_cosine_with_min_lr);
TESSERA_LR_SCHEDULE("cosine_warmup_with_min_lr", make_cosine_warmup_with_min_lr);
TESSERA_LR_SCHEDULE("warmup_stable_decay", make_warmup_stable_decay);

}  // namespace
}  // namespace tessera::optim
