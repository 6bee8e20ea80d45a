// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's schedules with its parameters. WarmupLR, WarmupDecayLR and WarmupCosineLR count t =
// update - 2, so that the lowest rate occurs twice; LRRangeTest and OneCycle are those of DeepSpeed
// 0.16.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule_table.h"

namespace tessera::interop {
namespace {

using optim::at_least_one, optim::DecayShape, optim::Given, optim::ScheduleCheck,
    optim::ScheduleParam;

constexpr auto kWarmupTypes = std::to_array<config::Named<DecayShape>>(
    {{DecayShape::Log, "log"}, {DecayShape::Linear, "linear"}});

const ScheduleParam kSteps{"warmup_num_steps", &Given::warmup, 1000, {.unit = "steps", .min = 0}};
const ScheduleParam kType{.key = "warmup_type",
                          .member = &Given::rises,
                          .shapes = kWarmupTypes,
                          .shape = DecayShape::Log};
const ScheduleParam kFirst{"warmup_min_lr", &Given::low, 0, {.min = 0}};
const ScheduleParam kPeak{"warmup_max_lr", &Given::high, 1e-3, {.min = 0}};
const ScheduleParam kTotal{"total_num_steps", &Given::total, 0, {.unit = "steps", .min = 1}};
constexpr const char* kStartKey = "last_batch_iteration";
const ScheduleParam kStart{kStartKey, &Given::start, -1};

/// Only -1, the beginning, is possible, because a resume is determined by the update's number.
void check_start(std::int64_t start, const json::Value& params, config::Problems& problems) {
  if (start == -1) return;
  problems.add(optim::place_of(params, kStartKey),
               kStartKey,
               fmt::format("{} would start in the middle of the schedule; a resume determines its "
                           "step by itself",
                           start),
               "remove it, or set it to -1; --resume continues where a run ended");
}

void check_warmup_lr(Given& v, const ScheduleCheck& check) {
  check_start(v.start, check.params, check.problems);
  v.warmup = std::max<std::int64_t>(2, v.warmup);
}
void check_range_test(Given& v, const ScheduleCheck& check) {
  check_start(v.start, check.params, check.problems);
}

/// Returns the fraction of the warm-up at t, from 0 to 1.
double warm(const Given& v, std::int64_t t) {
  const double done = static_cast<double>(t), all = static_cast<double>(v.warmup);
  return v.rises == DecayShape::Log ? std::log(done + 1.0) / std::log(all) : done / all;
}

double rise(const Given& v, std::int64_t t) {
  return t < 0 ? v.low : v.low + (v.high - v.low) * warm(v, t);
}
double stay(const Given& v, std::int64_t) {
  return v.low + (v.high - v.low) * 1.0;
}
double decay(const Given& v, std::int64_t t) {
  if (v.total == 0) return stay(v, t);
  const double left = static_cast<double>(v.total - t) / at_least_one(v.total - v.warmup);
  return v.low + (v.high - v.low) * std::max(0.0, left);
}

/// `first` and `low` are fractions of the optimizer's rate.
double rise_by_share(const Given& v, std::int64_t t) {
  return t < 0 ? 0.0 : v.base * (v.first + (1.0 - v.first) * warm(v, t));
}
double cosine_by_share(const Given& v, std::int64_t t) {
  const double way = static_cast<double>(t - v.warmup + 1) / at_least_one(v.total - v.warmup);
  const double ratio = v.low + (1.0 - v.low) * 0.5 * (1.0 + std::cos(std::numbers::pi * way));
  return v.base * std::max(0.0, ratio);
}

double range_test(const Given& v, std::int64_t t) {
  const double intervals = static_cast<double>(t) / static_cast<double>(v.size);
  return v.low * (1.0 + v.share * (v.staircase ? std::floor(intervals) : intervals));
}

const bool kDeepSpeedSchedules = optim::add_schedules({
    {.type = "WarmupLR",
     .params = {kFirst, kPeak, kSteps, kType, kStart},
     .rise = rise,
     .fall = stay,
     .check = check_warmup_lr,
     .first_update = 2},
    {.type = "WarmupDecayLR",
     .params = {kTotal, kFirst, kPeak, kSteps, kType, kStart},
     .rise = rise,
     .fall = decay,
     .check = check_warmup_lr,
     .first_update = 2},
    {.type = "WarmupCosineLR",
     .params = {kTotal,
                {"warmup_min_ratio", &Given::first, 0, {.min = 0}},
                {"cos_min_ratio", &Given::low, 1e-4, {.min = 0}},
                kSteps,
                kType,
                kStart},
     .rise = rise_by_share,
     .fall = cosine_by_share,
     .check = check_warmup_lr,
     .first_update = 2},
    {.type = "LRRangeTest",
     .params = {{"lr_range_test_min_lr", &Given::low, 1e-3, {.min = 0}},
                {"lr_range_test_step_size", &Given::size, 2000, {.unit = "steps", .min = 1}},
                {"lr_range_test_step_rate", &Given::share, 1.0, {.min = 0}},
                {"lr_range_test_staircase", &Given::staircase},
                kStart},
     .fall = range_test,
     .check = check_range_test},
});

struct CycleOptions {
  double low = 0.0, high = 0.0, decay_rate = 0.0, decay_size = 0.0;
  std::int64_t first = 2000, start = -1;
  std::optional<std::int64_t> second, first_stairs, second_stairs;
  bool cycle_momentum = true;
  double low_momentum = 0.8, high_momentum = 0.9, momentum_rate = 0.0;

  void describe(config::Fields& f) {
    f.field("cycle_min_lr",
            low,
            {.text = "Learning rate at both ends of the cycle.", .min = 0, .required = true});
    f.field("cycle_max_lr",
            high,
            {.text = "Learning rate at the peak of the cycle.", .min = 0, .required = true});
    f.field("cycle_first_step_size", first, {.unit = "steps", .min = 1});
    f.field("cycle_second_step_size", second, {.unit = "steps", .min = 0});
    // Not used, as in DeepSpeed 0.16.
    f.field("cycle_first_stair_count", first_stairs, {.min = 0});
    f.field("cycle_second_stair_count", second_stairs, {.min = 0});
    f.field("decay_step_size", decay_size, {.unit = "steps", .min = 0});
    f.field("decay_lr_rate", decay_rate, {.min = 0});
    f.field("cycle_momentum", cycle_momentum, {});
    f.field("cycle_min_mom", low_momentum, {.min = 0, .max = 1});
    f.field("cycle_max_mom", high_momentum, {.min = 0, .max = 1});
    f.field("decay_mom_rate", momentum_rate, {});
    f.field(kStartKey, start, {});
  }
};

class OneCycle final : public optim::Schedule {
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
  problems.add(optim::place_of(params, "decay_mom_rate"),
               "decay_mom_rate",
               fmt::format("moves the momentum to {} by step {}, outside 0 to 1", *last, max_steps),
               "lower decay_mom_rate, or raise decay_step_size");
}

std::unique_ptr<optim::Schedule> make_one_cycle(const json::Value& params,
                                                const optim::ScheduleContext& context,
                                                config::Problems& problems,
                                                config::Origins& origins) {
  auto options = optim::read_params<CycleOptions>(params, problems, origins);
  check_start(options.start, params, problems);
  options.cycle_momentum = options.cycle_momentum && context.has_betas;
  auto cycle = std::make_unique<OneCycle>(options);
  check_momentum(*cycle, context.max_steps, params, problems);
  return cycle;
}

TESSERA_LR_SCHEDULE("OneCycle", make_one_cycle);

}  // namespace
}  // namespace tessera::interop
