// SPDX-License-Identifier: Apache-2.0
// Colossal-AI's schedules with its parameters, and those that it takes from torch: i = update - 1.
// A warm-up of W steps multiplies by (i + 1) / W; the schedule after it begins at i - W.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

struct TotalOptions {
  std::int64_t total = 0;

  void describe(config::Fields& f) {
    f.field("total_steps",
            total,
            {.text = "Length of the whole schedule.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
  }
};
/// The library's signatures have total_steps for every schedule.
struct EndlessOptions {
  std::optional<std::int64_t> unused_total;

  void describe(config::Fields& f) {
    f.field(
        "total_steps",
        unused_total,
        {.text =
             "Accepted because all of Colossal-AI's schedules have it; this schedule has no end.",
         .unit = "steps"});
  }
};

/// A schedule preceded by a warm-up.
template <class Inner>
struct WithWarmup : Inner {
  std::int64_t warmup = 0;

  void describe(config::Fields& f) {
    Inner::describe(f);
    f.field("warmup_steps",
            warmup,
            {.text = "Number of linear warm-up steps.", .unit = "steps", .min = 0});
  }
};

struct CosineOptions : TotalOptions {
  double lowest = 0.0;

  void describe(config::Fields& f) {
    TotalOptions::describe(f);
    f.field("eta_min", lowest, {.text = "Learning rate at the end.", .min = 0});
  }
};
struct FlatOptions : TotalOptions {
  double flat_share = 0.72;

  void describe(config::Fields& f) {
    TotalOptions::describe(f);
    f.field("pct_start",
            flat_share,
            {.text = "Fraction of the steps after the warm-up that use the full learning rate.",
             .min = 0,
             .max = 1});
  }
};
struct FlatWarmupOptions : WithWarmup<FlatOptions> {
  double lowest = 0.0;

  void describe(config::Fields& f) {
    WithWarmup<FlatOptions>::describe(f);
    f.field("eta_min", lowest, {.text = "Learning rate at the end.", .min = 0});
  }
};
struct PolynomialOptions : TotalOptions {
  double end = 1e-4, power = 1.0;

  void describe(config::Fields& f) {
    TotalOptions::describe(f);
    f.field("end_lr", end, {.text = "Learning rate at the end.", .min = 0});
    f.field("power", power, {.text = "Exponent of the polynomial decay.", .min = 0});
  }
};
struct StepsOptions : EndlessOptions {
  std::vector<double> milestones;
  double gamma = 0.1;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field("milestones",
            milestones,
            {.text = "Steps at which the learning rate is multiplied by gamma; those within a "
                     "warm-up are ignored.",
             .unit = "steps",
             .min = 0,
             .required = true});
    f.field("gamma", gamma, {.text = "Factor on the learning rate at each milestone.", .min = 0});
  }
};
struct StepOptions : EndlessOptions {
  std::int64_t size = 1;
  double gamma = 0.1;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field("step_size",
            size,
            {.text = "Number of steps with the same learning rate.", .unit = "steps", .min = 1});
    f.field("gamma",
            gamma,
            {.text = "Factor on the learning rate after each step_size steps.", .min = 0});
  }
};
struct ExponentialOptions : EndlessOptions {
  double gamma = 1.0;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field("gamma", gamma, {.text = "Factor on the learning rate per step.", .min = 0});
  }
};
struct ConstantOptions : EndlessOptions {
  double factor = 1.0 / 3.0;
  std::int64_t steps = 5;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field(
        "factor", factor, {.text = "Fraction of the learning rate used at the start.", .min = 0});
    f.field("total_iters",
            steps,
            {.text = "Number of steps that use this fraction.", .unit = "steps", .min = 1});
  }
};

/// Linear up to `base_lr` in `warmup` steps, then `inner` of the steps after them.
std::unique_ptr<Schedule> warmed(double base_lr, std::int64_t warmup, Curve::Rate inner) {
  return std::make_unique<Curve>(
      warmup, [base_lr, warmup, inner = std::move(inner)](std::int64_t i) {
        if (i >= warmup) return inner(i - warmup);
        return static_cast<double>(i + 1) / static_cast<double>(warmup) * base_lr;
      });
}

/// Half a cosine from `high` in `steps`; rises again after that, as in torch.
Curve::Rate annealing(double high, double low, std::int64_t steps) {
  return [=](std::int64_t i) {
    return low + (high - low) * half_cosine(static_cast<double>(i) / at_least_one(steps));
  };
}

/// The full rate for `first` steps, then cosine annealing over the rest.
Curve::Rate flat_annealing(double high, double low, std::int64_t steps, double flat_share) {
  const auto flat = static_cast<std::int64_t>(static_cast<double>(steps) * flat_share);
  return [high, flat, rest = annealing(high, low, steps - flat)](std::int64_t i) {
    return i < flat ? high : rest(i - flat);
  };
}

Curve::Rate polynomial(double high, const PolynomialOptions& o, std::int64_t steps) {
  return [high, o, steps](std::int64_t i) {
    const double way = static_cast<double>(std::min(i, steps)) / at_least_one(steps);
    return (high - o.end) * std::pow(1.0 - way, o.power) + o.end;
  };
}

template <class Options>
Options read_total(const json::Value& params,
                   const ScheduleContext& context,
                   config::Problems& problems,
                   config::Origins& origins) {
  auto options = read_params<Options>(params, problems, origins);
  if (options.total == 0) options.total = context.max_steps;
  return options;
}

template <class Options>
Options read_warmed(const json::Value& params,
                    const ScheduleContext& context,
                    config::Problems& problems,
                    config::Origins& origins) {
  const auto options = read_total<Options>(params, context, problems, origins);
  check_warmup(options.warmup, options.total, "total_steps", params, problems);
  return options;
}

/// Checks that the milestones are ascending integers.
void check_milestones(const std::vector<double>& milestones,
                      const json::Value& params,
                      config::Problems& problems) {
  for (std::size_t i = 0; i < milestones.size(); ++i) {
    const bool whole = milestones[i] == std::floor(milestones[i]);
    if (whole && (i == 0 || milestones[i] > milestones[i - 1])) continue;
    problems.add(place_of(params, "milestones"),
                 fmt::format("milestones[{}]", i),
                 whole ? fmt::format("{} does not come after {}", milestones[i], milestones[i - 1])
                       : fmt::format("expected an integer, found {}", milestones[i]));
    return;
  }
}

/// The full rate, multiplied by gamma for every milestone in [first, first + i].
Curve::Rate stepped(double base_lr, const StepsOptions& o, std::int64_t first) {
  return [base_lr, o, first](std::int64_t i) {
    const auto passed = std::count_if(o.milestones.begin(), o.milestones.end(), [&](double m) {
      return m >= static_cast<double>(first) && m <= static_cast<double>(first + i);
    });
    return base_lr * std::pow(o.gamma, static_cast<double>(passed));
  };
}

std::unique_ptr<Schedule> make_cosine_annealing(const json::Value& params,
                                                const ScheduleContext& context,
                                                config::Problems& problems,
                                                config::Origins& origins) {
  const auto o = read_total<CosineOptions>(params, context, problems, origins);
  return std::make_unique<Curve>(0, annealing(context.base_lr, o.lowest, o.total));
}

std::unique_ptr<Schedule> make_cosine_annealing_warmup(const json::Value& params,
                                                       const ScheduleContext& context,
                                                       config::Problems& problems,
                                                       config::Origins& origins) {
  const auto o = read_warmed<WithWarmup<CosineOptions>>(params, context, problems, origins);
  return warmed(
      context.base_lr, o.warmup, annealing(context.base_lr, o.lowest, o.total - o.warmup));
}

std::unique_ptr<Schedule> make_flat_annealing(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins) {
  const auto o = read_total<FlatOptions>(params, context, problems, origins);
  return std::make_unique<Curve>(0, flat_annealing(context.base_lr, 0.0, o.total, o.flat_share));
}

std::unique_ptr<Schedule> make_flat_annealing_warmup(const json::Value& params,
                                                     const ScheduleContext& context,
                                                     config::Problems& problems,
                                                     config::Origins& origins) {
  const auto o = read_warmed<FlatWarmupOptions>(params, context, problems, origins);
  return warmed(context.base_lr,
                o.warmup,
                flat_annealing(context.base_lr, o.lowest, o.total - o.warmup, o.flat_share));
}

/// The only warm-up that ends below the full rate, which the first step of the decay has. After the
/// total the library's rate is negative; here it is 0.
std::unique_ptr<Schedule> make_linear_warmup(const json::Value& params,
                                             const ScheduleContext& context,
                                             config::Problems& problems,
                                             config::Origins& origins) {
  const auto o = read_warmed<WithWarmup<TotalOptions>>(params, context, problems, origins);
  return std::make_unique<Curve>(o.warmup, [o, base_lr = context.base_lr](std::int64_t i) {
    const std::int64_t left = std::max<std::int64_t>(0, o.total - i);
    const double share = i < o.warmup
                             ? static_cast<double>(i + 1) / static_cast<double>(o.warmup + 1)
                             : static_cast<double>(left) / at_least_one(o.total - o.warmup);
    return share * base_lr;
  });
}

std::unique_ptr<Schedule> make_multi_step(const json::Value& params,
                                          const ScheduleContext& context,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  const auto o = read_params<StepsOptions>(params, problems, origins);
  check_milestones(o.milestones, params, problems);
  return std::make_unique<Curve>(0, stepped(context.base_lr, o, 0));
}

std::unique_ptr<Schedule> make_multi_step_warmup(const json::Value& params,
                                                 const ScheduleContext& context,
                                                 config::Problems& problems,
                                                 config::Origins& origins) {
  const auto o = read_params<WithWarmup<StepsOptions>>(params, problems, origins);
  check_milestones(o.milestones, params, problems);
  return warmed(context.base_lr, o.warmup, stepped(context.base_lr, o, o.warmup));
}

std::unique_ptr<Schedule> make_polynomial(const json::Value& params,
                                          const ScheduleContext& context,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  const auto o = read_total<PolynomialOptions>(params, context, problems, origins);
  return std::make_unique<Curve>(0, polynomial(context.base_lr, o, o.total));
}

std::unique_ptr<Schedule> make_polynomial_warmup(const json::Value& params,
                                                 const ScheduleContext& context,
                                                 config::Problems& problems,
                                                 config::Origins& origins) {
  const auto o = read_warmed<WithWarmup<PolynomialOptions>>(params, context, problems, origins);
  return warmed(context.base_lr, o.warmup, polynomial(context.base_lr, o, o.total - o.warmup));
}

std::unique_ptr<Schedule> make_step(const json::Value& params,
                                    const ScheduleContext& context,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  const auto o = read_params<StepOptions>(params, problems, origins);
  return std::make_unique<Curve>(0, [o, base_lr = context.base_lr](std::int64_t i) {
    const std::int64_t whole = i / o.size;
    return base_lr * std::pow(o.gamma, static_cast<double>(whole));
  });
}

std::unique_ptr<Schedule> make_exponential(const json::Value& params,
                                           const ScheduleContext& context,
                                           config::Problems& problems,
                                           config::Origins& origins) {
  const auto o = read_params<ExponentialOptions>(params, problems, origins);
  return std::make_unique<Curve>(0, [o, base_lr = context.base_lr](std::int64_t i) {
    return base_lr * std::pow(o.gamma, static_cast<double>(i));
  });
}

std::unique_ptr<Schedule> make_constant_share(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins) {
  const auto o = read_params<ConstantOptions>(params, problems, origins);
  return std::make_unique<Curve>(0, [o, base_lr = context.base_lr](std::int64_t i) {
    return i < o.steps ? base_lr * o.factor : base_lr;
  });
}

TESSERA_LR_SCHEDULE("CosineAnnealingLR", make_cosine_annealing);
TESSERA_LR_SCHEDULE("CosineAnnealingWarmupLR", make_cosine_annealing_warmup);
TESSERA_LR_SCHEDULE("FlatAnnealingLR", make_flat_annealing);
TESSERA_LR_SCHEDULE("FlatAnnealingWarmupLR", make_flat_annealing_warmup);
TESSERA_LR_SCHEDULE("LinearWarmupLR", make_linear_warmup);
TESSERA_LR_SCHEDULE("MultiStepLR", make_multi_step);
TESSERA_LR_SCHEDULE("MultiStepWarmupLR", make_multi_step_warmup);
TESSERA_LR_SCHEDULE("PolynomialLR", make_polynomial);
TESSERA_LR_SCHEDULE("PolynomialWarmupLR", make_polynomial_warmup);
TESSERA_LR_SCHEDULE("StepLR", make_step);
TESSERA_LR_SCHEDULE("ExponentialLR", make_exponential);
TESSERA_LR_SCHEDULE("ConstantLR", make_constant_share);

}  // namespace
}  // namespace tessera::optim
