// SPDX-License-Identifier: Apache-2.0
// Noam, Linear, Cosine, Exponential and NoDecay with BMTrain's parameters: n = update - 1, rates
// instead of factors. start_lr replaces the optimizer's rate.
#include "tessera/optim/schedules/bmtrain.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "tessera/optim/params.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

struct StartOptions {
  std::optional<double> start;
  std::int64_t warmup = 0;

  void describe_start(config::Fields& f) {
    f.field("start_lr",
            start,
            {.text = "Learning rate after the warm-up.",
             .min = 0,
             .default_text = "the optimizer's lr"});
  }
  void describe_warmup(config::Fields& f) {
    f.field("warmup_iter",
            warmup,
            {.text = "Number of linear warm-up steps from 0.", .unit = "steps", .min = 0});
  }
};

struct DecayOptions : StartOptions {
  std::int64_t end = 0;

  void describe(config::Fields& f) {
    describe_start(f);
    describe_warmup(f);
    f.field("end_iter",
            end,
            {.text = "Step at which the learning rate reaches 0.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
  }
};

/// The library's signature has end_iter for every schedule; its examples pass -1.
struct EndlessOptions : StartOptions {
  std::optional<std::int64_t> unused_end;

  void describe(config::Fields& f) {
    describe_start(f);
    describe_warmup(f);
    describe_end(f);
  }
  void describe_end(config::Fields& f) {
    f.field(
        "end_iter",
        unused_end,
        {.text = "Accepted because all of BMTrain's schedules have it; this schedule has no end.",
         .unit = "steps"});
  }
};

struct NoamOptions : EndlessOptions {
  void describe(config::Fields& f) {
    describe_start(f);
    // The length of the warm-up is also the unit of the decay.
    f.field("warmup_iter",
            warmup,
            {.text = "Number of linear warm-up steps from 0.",
             .unit = "steps",
             .min = 1,
             .required = true});
    describe_end(f);
  }
};

struct ExponentialOptions : EndlessOptions {
  double gamma = 0.95;

  void describe(config::Fields& f) {
    EndlessOptions::describe(f);
    f.field("gamma",
            gamma,
            {.text = "Factor on the learning rate per step after the warm-up.", .min = 0});
  }
};

/// Linear up to `start`, then `decay` of step n.
std::unique_ptr<Schedule> warmed(double start, std::int64_t warmup, Curve::Rate decay) {
  return std::make_unique<Curve>(warmup, [start, warmup, decay = std::move(decay)](std::int64_t n) {
    if (n < warmup) return start * static_cast<double>(n) / static_cast<double>(warmup);
    return decay(n);
  });
}

DecayOptions read_decay(const json::Value& params,
                        const ScheduleContext& context,
                        config::Problems& problems,
                        config::Origins& origins) {
  auto options = read_params<DecayOptions>(params, problems, origins);
  check_warmup(options.warmup, options.end, "end_iter", params, problems);
  if (options.end == 0) options.end = context.max_steps;
  return options;
}

std::unique_ptr<Schedule> make_noam(const json::Value& params,
                                    const ScheduleContext& context,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  const auto options = read_params<NoamOptions>(params, problems, origins);
  const double start = options.start.value_or(context.base_lr);
  return warmed(start / std::sqrt(at_least_one(options.warmup)),
                options.warmup,
                [start](std::int64_t n) { return start / std::sqrt(at_least_one(n)); });
}

std::unique_ptr<Schedule> make_exponential(const json::Value& params,
                                           const ScheduleContext& context,
                                           config::Problems& problems,
                                           config::Origins& origins) {
  const auto o = read_params<ExponentialOptions>(params, problems, origins);
  const double start = o.start.value_or(context.base_lr);
  return warmed(start, o.warmup, [o, start](std::int64_t n) {
    return start * std::pow(o.gamma, static_cast<double>(n - o.warmup));
  });
}

std::unique_ptr<Schedule> make_no_decay(const json::Value& params,
                                        const ScheduleContext& context,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  const auto options = read_params<EndlessOptions>(params, problems, origins);
  const double start = options.start.value_or(context.base_lr);
  return warmed(start, options.warmup, [start](std::int64_t) { return start; });
}

TESSERA_LR_SCHEDULE("Noam", make_noam);
TESSERA_LR_SCHEDULE("Exponential", make_exponential);
TESSERA_LR_SCHEDULE("NoDecay", make_no_decay);

}  // namespace

bool are_bmtrain_params(const json::Value& params) {
  return params.find("start_lr") != nullptr || params.find("warmup_iter") != nullptr ||
         params.find("end_iter") != nullptr;
}

std::unique_ptr<Schedule> make_bmtrain_linear(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins) {
  const DecayOptions o = read_decay(params, context, problems, origins);
  const double start = o.start.value_or(context.base_lr);
  return warmed(start, o.warmup, [o, start](std::int64_t n) {
    return std::max(0.0, start * static_cast<double>(o.end - n) / at_least_one(o.end - o.warmup));
  });
}

/// Rises again after its end, as in the library.
std::unique_ptr<Schedule> make_bmtrain_cosine(const json::Value& params,
                                              const ScheduleContext& context,
                                              config::Problems& problems,
                                              config::Origins& origins) {
  const DecayOptions o = read_decay(params, context, problems, origins);
  const double start = o.start.value_or(context.base_lr);
  return warmed(start, o.warmup, [o, start](std::int64_t n) {
    return start * half_cosine(static_cast<double>(n - o.warmup) / at_least_one(o.end - o.warmup));
  });
}

}  // namespace tessera::optim
