// SPDX-License-Identifier: Apache-2.0
// linear, cosine and constant_with_warmup with Hugging Face's parameters: t = update - 1, factors
// of the optimizer's rate.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {
namespace {

struct WarmupOptions {
  std::int64_t warmup = 0;

  void describe(config::Fields& f) {
    f.field("num_warmup_steps",
            warmup,
            {.text = "Steps of linear warm-up from 0.", .unit = "steps", .min = 0});
  }
};
struct DecayOptions : WarmupOptions {
  std::int64_t total = 0;

  void describe(config::Fields& f) {
    WarmupOptions::describe(f);
    f.field("num_training_steps",
            total,
            {.text = "Step at which the rate reaches its end.",
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
            {.text = "Waves of the cosine; half a wave ends at 0.", .min = 0, .above_min = true});
  }
};

double at_least_one(std::int64_t n) {
  return static_cast<double>(std::max<std::int64_t>(1, n));
}

/// Warm-up, then what a subclass says.
class Warmed : public Schedule {
 public:
  Warmed(double base_lr, std::int64_t warmup) : base_lr_(base_lr), warmup_(warmup) {}

  [[nodiscard]] std::int64_t warmup_steps() const final { return warmup_; }
  [[nodiscard]] double lr(std::int64_t update) const final {
    const std::int64_t t = update - 1;
    if (t < warmup_) return base_lr_ * (static_cast<double>(t) / at_least_one(warmup_));
    return base_lr_ * factor(t - warmup_);
  }

 private:
  /// `past` steps after the warm-up.
  [[nodiscard]] virtual double factor(std::int64_t past) const = 0;

  double base_lr_;
  std::int64_t warmup_;
};

class ConstantWithWarmup final : public Warmed {
 public:
  using Warmed::Warmed;

 private:
  [[nodiscard]] double factor(std::int64_t) const override { return 1.0; }
};

class Linear final : public Warmed {
 public:
  Linear(double base_lr, const DecayOptions& options)
      : Warmed(base_lr, options.warmup), decay_(options.total - options.warmup) {}

 private:
  [[nodiscard]] double factor(std::int64_t past) const override {
    return std::max(0.0, static_cast<double>(decay_ - past) / at_least_one(decay_));
  }
  std::int64_t decay_;
};

/// Rises again past its total, as the library's does.
class Cosine final : public Warmed {
 public:
  Cosine(double base_lr, const CosineOptions& options)
      : Warmed(base_lr, options.warmup),
        decay_(options.total - options.warmup),
        cycles_(options.cycles) {}

 private:
  [[nodiscard]] double factor(std::int64_t past) const override {
    const double way = static_cast<double>(past) / at_least_one(decay_);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * cycles_ * 2.0 * way)));
  }
  std::int64_t decay_;
  double cycles_;
};

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
  const auto options = read_params<WarmupOptions>(params, problems, origins);
  return std::make_unique<ConstantWithWarmup>(context.base_lr, options.warmup);
}

std::unique_ptr<Schedule> make_linear(const json::Value& params,
                                      const ScheduleContext& context,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  const auto options = read_decay<DecayOptions>(params, context, problems, origins);
  return std::make_unique<Linear>(context.base_lr, options);
}

std::unique_ptr<Schedule> make_cosine(const json::Value& params,
                                      const ScheduleContext& context,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  const auto options = read_decay<CosineOptions>(params, context, problems, origins);
  return std::make_unique<Cosine>(context.base_lr, options);
}

TESSERA_LR_SCHEDULE("constant_with_warmup", make_constant_with_warmup);
TESSERA_LR_SCHEDULE("linear", make_linear);
TESSERA_LR_SCHEDULE("cosine", make_cosine);

}  // namespace
}  // namespace tessera::optim
