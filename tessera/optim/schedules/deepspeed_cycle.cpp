// SPDX-License-Identifier: Apache-2.0
// LRRangeTest and OneCycle with the parameters and step count of DeepSpeed 0.16.
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"
#include "tessera/optim/schedules/deepspeed.h"

namespace tessera::optim {
namespace {

struct RangeTestOptions {
  double low = 1e-3, rate = 1.0;
  std::int64_t size = 2000;
  bool staircase = false;
  DeepSpeedStart start;

  void describe(config::Fields& f) {
    f.field("lr_range_test_min_lr", low, {.text = "Learning rate at the start.", .min = 0});
    f.field("lr_range_test_step_size",
            size,
            {.text = "Length of an interval, over which the learning rate grows by step_rate times "
                     "the initial one.",
             .unit = "steps",
             .min = 1});
    f.field("lr_range_test_step_rate",
            rate,
            {.text = "Relative growth of the learning rate per interval.", .min = 0});
    f.field("lr_range_test_staircase",
            staircase,
            {.text = "Increase the learning rate once per interval instead of at every step."});
    start.describe(f);
  }
};

struct CycleOptions {
  double low = 0.0, high = 0.0, decay_rate = 0.0, decay_size = 0.0;
  std::int64_t first = 2000;
  std::optional<std::int64_t> second, first_stairs, second_stairs;
  bool cycle_momentum = true;
  double low_momentum = 0.8, high_momentum = 0.9, momentum_rate = 0.0;
  DeepSpeedStart start;

  void describe(config::Fields& f) {
    f.field("cycle_min_lr",
            low,
            {.text = "Learning rate at both ends of the cycle.", .min = 0, .required = true});
    f.field("cycle_max_lr",
            high,
            {.text = "Learning rate at the peak of the cycle.", .min = 0, .required = true});
    f.field("cycle_first_step_size",
            first,
            {.text = "Number of steps up to the peak.", .unit = "steps", .min = 1});
    f.field("cycle_second_step_size",
            second,
            {.text = "Number of steps down from the peak.",
             .unit = "steps",
             .min = 0,
             .default_text = "cycle_first_step_size"});
    describe_unused(f);
    f.field("decay_step_size",
            decay_size,
            {.text = "Length of one decay step after the cycle; 0 disables the decay.",
             .unit = "steps",
             .min = 0});
    f.field(
        "decay_lr_rate",
        decay_rate,
        {.text = "The learning rate is divided by 1 + this value for each decay step.", .min = 0});
    describe_momentum(f);
    start.describe(f);
  }
  void describe_unused(config::Fields& f) {
    const std::string unused = "Accepted but not used, as in DeepSpeed 0.16.";
    f.field("cycle_first_stair_count", first_stairs, {.text = unused, .min = 0});
    f.field("cycle_second_stair_count", second_stairs, {.text = unused, .min = 0});
  }
  void describe_momentum(config::Fields& f) {
    f.field("cycle_momentum",
            cycle_momentum,
            {.text = "Vary betas[0] inversely to the learning rate and keep betas[1] at 0.99, if "
                     "the optimizer has betas."});
    f.field("cycle_min_mom",
            low_momentum,
            {.text = "Momentum at the highest learning rate.", .min = 0, .max = 1});
    f.field("cycle_max_mom",
            high_momentum,
            {.text = "Momentum at the lowest learning rate.", .min = 0, .max = 1});
    f.field(
        "decay_mom_rate",
        momentum_rate,
        {.text =
             "After the cycle the momentum is multiplied by 1 + this value for each decay step."});
  }
};

class OneCycle final : public Schedule {
 public:
  explicit OneCycle(const CycleOptions& options)
      : options_(options), size_(options.first + options.second.value_or(options.first)) {}

  [[nodiscard]] double lr(std::int64_t update) const override {
    const std::int64_t past = past_cycle(update);
    if (past <= 0) return options_.low + (options_.high - options_.low) * height(update);
    return options_.low / (1.0 + options_.decay_rate * decays(past));
  }
  [[nodiscard]] std::optional<double> beta1(std::int64_t update) const override {
    if (!options_.cycle_momentum) return std::nullopt;
    // The library begins with the lowest momentum at the lowest rate.
    if (update == 1) return options_.low_momentum;
    const std::int64_t past = past_cycle(update);
    const double low = options_.low_momentum, high = options_.high_momentum;
    if (past <= 0) return high - (high - low) * height(update);
    return high * (1.0 + options_.momentum_rate * decays(past));
  }
  [[nodiscard]] std::optional<double> beta2(std::int64_t) const override {
    if (!options_.cycle_momentum) return std::nullopt;
    return 0.99;
  }

 private:
  [[nodiscard]] std::int64_t past_cycle(std::int64_t update) const { return update - 1 - size_; }
  /// Returns the position in the cycle: from 0 to 1 and back.
  [[nodiscard]] double height(std::int64_t update) const {
    const std::int64_t at = (update - 1) % size_;
    if (at <= options_.first) return static_cast<double>(at) / static_cast<double>(options_.first);
    return static_cast<double>(size_ - at) / static_cast<double>(size_ - options_.first);
  }
  [[nodiscard]] double decays(std::int64_t past) const {
    return options_.decay_size == 0.0 ? 0.0 : static_cast<double>(past) / options_.decay_size;
  }

  CycleOptions options_;
  std::int64_t size_;
};

/// The momentum of the last update is the farthest from the cycle's range.
void check_momentum(const OneCycle& cycle,
                    std::int64_t max_steps,
                    const json::Value& params,
                    config::Problems& problems) {
  const auto last = max_steps > 0 ? cycle.beta1(max_steps) : std::nullopt;
  if (!last || (*last >= 0.0 && *last < 1.0)) return;
  problems.add(place_of(params, "decay_mom_rate"),
               "decay_mom_rate",
               fmt::format("moves the momentum to {} by step {}, outside 0 to 1", *last, max_steps),
               "lower decay_mom_rate, or raise decay_step_size");
}

std::unique_ptr<Schedule> make_range_test(const json::Value& params,
                                          const ScheduleContext&,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  const auto o = read_params<RangeTestOptions>(params, problems, origins);
  o.start.check(params, problems);
  return std::make_unique<Curve>(0, [o](std::int64_t t) {
    const double intervals = static_cast<double>(t) / static_cast<double>(o.size);
    return o.low * (1.0 + o.rate * (o.staircase ? std::floor(intervals) : intervals));
  });
}

std::unique_ptr<Schedule> make_one_cycle(const json::Value& params,
                                         const ScheduleContext& context,
                                         config::Problems& problems,
                                         config::Origins& origins) {
  auto options = read_params<CycleOptions>(params, problems, origins);
  options.start.check(params, problems);
  options.cycle_momentum = options.cycle_momentum && context.has_betas;
  auto cycle = std::make_unique<OneCycle>(options);
  check_momentum(*cycle, context.max_steps, params, problems);
  return cycle;
}

TESSERA_LR_SCHEDULE("LRRangeTest", make_range_test);
TESSERA_LR_SCHEDULE("OneCycle", make_one_cycle);

}  // namespace
}  // namespace tessera::optim
