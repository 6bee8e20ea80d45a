// SPDX-License-Identifier: Apache-2.0
// WarmupLR, WarmupDecayLR and WarmupCosineLR with DeepSpeed's parameters and step count: t = update
// - 2, so that the lowest rate occurs twice, at t = -1 and t = 0.
#include "tessera/optim/schedules/deepspeed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {

void DeepSpeedStart::describe(config::Fields& f) {
  f.field("last_batch_iteration",
          last_batch_iteration,
          {.text = "Must be -1, the beginning of the schedule."});
}

void DeepSpeedStart::check(const json::Value& params, config::Problems& problems) const {
  if (last_batch_iteration == -1) return;
  problems.add(
      place_of(params, "last_batch_iteration"),
      "last_batch_iteration",
      fmt::format(
          "{} would start in the middle of the schedule; a resume determines its step by itself",
          last_batch_iteration),
      "remove it, or set it to -1; --resume continues where a run ended");
}

namespace {

enum class WarmupShape : std::uint8_t { Log, Linear };
constexpr auto kWarmupShapes = std::to_array<config::Named<WarmupShape>>(
    {{WarmupShape::Log, "log"}, {WarmupShape::Linear, "linear"}});

struct Warmup {
  std::int64_t steps = 1000;
  WarmupShape type = WarmupShape::Log;

  void describe(config::Fields& f) {
    f.field(
        "warmup_num_steps",
        steps,
        {.text = "Number of warm-up steps; fewer than 2 count as 2.", .unit = "steps", .min = 0});
    f.choice("warmup_type", type, kWarmupShapes, {.text = "Shape of the warm-up."});
  }
  [[nodiscard]] std::int64_t length() const { return std::max<std::int64_t>(2, steps); }
  /// Returns the fraction of the warm-up at t, from 0 to 1.
  [[nodiscard]] double share(std::int64_t t) const {
    if (t >= length()) return 1.0;
    const double done = static_cast<double>(t), all = static_cast<double>(length());
    return type == WarmupShape::Log ? std::log(done + 1.0) / std::log(all) : done / all;
  }
};

std::int64_t iteration(std::int64_t update) {
  return update - 2;
}

struct WarmupLrOptions {
  double low = 0.0, high = 1e-3;
  Warmup warmup;
  DeepSpeedStart start;

  void describe(config::Fields& f) {
    f.field("warmup_min_lr", low, {.text = "Learning rate at the start.", .min = 0});
    f.field("warmup_max_lr", high, {.text = "Learning rate after the warm-up.", .min = 0});
    warmup.describe(f);
    start.describe(f);
  }
};
struct WarmupDecayOptions : WarmupLrOptions {
  std::int64_t total = 0;

  void describe(config::Fields& f) {
    f.field("total_num_steps",
            total,
            {.text = "Step at which the learning rate reaches its final value.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
    WarmupLrOptions::describe(f);
  }
};
struct WarmupCosineLrOptions {
  std::int64_t total = 0;
  double warmup_min_ratio = 0.0, cos_min_ratio = 1e-4;
  Warmup warmup;
  DeepSpeedStart start;

  void describe(config::Fields& f) {
    f.field("total_num_steps",
            total,
            {.text = "Step at which the cosine reaches its minimum.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
    f.field("warmup_min_ratio",
            warmup_min_ratio,
            {.text = "Fraction of the optimizer's learning rate at which the warm-up begins.",
             .min = 0});
    f.field("cos_min_ratio",
            cos_min_ratio,
            {.text = "Fraction of the optimizer's learning rate at the end.", .min = 0});
    warmup.describe(f);
    start.describe(f);
  }
};

class WarmupLr final : public Schedule {
 public:
  /// A `total` of 0 means no decay.
  WarmupLr(const WarmupLrOptions& options, std::int64_t total) : options_(options), total_(total) {}

  [[nodiscard]] std::int64_t warmup_steps() const override { return options_.warmup.length(); }
  [[nodiscard]] double lr(std::int64_t update) const override {
    const std::int64_t t = iteration(update);
    if (t < 0) return options_.low;
    return options_.low + (options_.high - options_.low) * share(t);
  }

 private:
  [[nodiscard]] double share(std::int64_t t) const {
    const std::int64_t W = options_.warmup.length();
    if (total_ == 0 || t < W) return options_.warmup.share(t);
    return std::max(0.0, static_cast<double>(total_ - t) / at_least_one(total_ - W));
  }

  WarmupLrOptions options_;
  std::int64_t total_;
};

class WarmupCosineLr final : public Schedule {
 public:
  WarmupCosineLr(const WarmupCosineLrOptions& options, double base_lr)
      : options_(options), base_lr_(base_lr) {}

  [[nodiscard]] std::int64_t warmup_steps() const override { return options_.warmup.length(); }
  [[nodiscard]] double lr(std::int64_t update) const override {
    const std::int64_t t = iteration(update);
    return t < 0 ? 0.0 : base_lr_ * ratio(t);
  }

 private:
  [[nodiscard]] double ratio(std::int64_t t) const {
    const std::int64_t W = options_.warmup.length();
    const double first = options_.warmup_min_ratio, last = options_.cos_min_ratio;
    if (t < W) return first + (1.0 - first) * options_.warmup.share(t);
    const double way = static_cast<double>(t - W + 1) / at_least_one(options_.total - W);
    return std::max(0.0, last + (1.0 - last) * 0.5 * (1.0 + std::cos(std::numbers::pi * way)));
  }

  WarmupCosineLrOptions options_;
  double base_lr_;
};

std::unique_ptr<Schedule> make_warmup_lr(const json::Value& params,
                                         const ScheduleContext&,
                                         config::Problems& problems,
                                         config::Origins& origins) {
  const auto options = read_params<WarmupLrOptions>(params, problems, origins);
  options.start.check(params, problems);
  return std::make_unique<WarmupLr>(options, 0);
}

std::unique_ptr<Schedule> make_warmup_decay_lr(const json::Value& params,
                                               const ScheduleContext& context,
                                               config::Problems& problems,
                                               config::Origins& origins) {
  const auto options = read_params<WarmupDecayOptions>(params, problems, origins);
  options.start.check(params, problems);
  const std::int64_t total = options.total > 0 ? options.total : context.max_steps;
  return std::make_unique<WarmupLr>(options, total);
}

std::unique_ptr<Schedule> make_warmup_cosine_lr(const json::Value& params,
                                                const ScheduleContext& context,
                                                config::Problems& problems,
                                                config::Origins& origins) {
  auto options = read_params<WarmupCosineLrOptions>(params, problems, origins);
  options.start.check(params, problems);
  if (options.total == 0) options.total = context.max_steps;
  return std::make_unique<WarmupCosineLr>(options, context.base_lr);
}

TESSERA_LR_SCHEDULE("WarmupLR", make_warmup_lr);
TESSERA_LR_SCHEDULE("WarmupDecayLR", make_warmup_decay_lr);
TESSERA_LR_SCHEDULE("WarmupCosineLR", make_warmup_cosine_lr);

}  // namespace
}  // namespace tessera::optim
