// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/make_schedule.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/optim/make_rule.h"

namespace tessera::optim {
namespace {

/// A schedule that begins after step `start`.
class LaterSchedule final : public Schedule {
 public:
  LaterSchedule(std::unique_ptr<Schedule> schedule, std::int64_t start)
      : schedule_(std::move(schedule)), start_(start) {}
  [[nodiscard]] double lr(std::int64_t update) const override { return schedule_->lr(own(update)); }
  [[nodiscard]] std::int64_t warmup_steps() const override {
    return start_ + schedule_->warmup_steps();
  }
  [[nodiscard]] std::optional<double> beta1(std::int64_t update) const override {
    return schedule_->beta1(own(update));
  }
  [[nodiscard]] std::optional<double> beta2(std::int64_t update) const override {
    return schedule_->beta2(own(update));
  }

 private:
  [[nodiscard]] std::int64_t own(std::int64_t update) const {
    return std::max<std::int64_t>(update - start_, 1);
  }
  std::unique_ptr<Schedule> schedule_;
  std::int64_t start_;
};

/// The number of a parameter of the schedule; nothing if it is not given.
std::optional<double> number_in(const json::Value& params, const char* key) {
  const json::Value* const value = params.is_object() ? params.find(key) : nullptr;
  return value != nullptr && value->is_number() ? std::optional(value->as_double()) : std::nullopt;
}

/// Warns of rates to which a schedule should fall, and that are above the rate from which it does.
void warn_of_lowest_rates(const json::Value& params,
                          double base_lr,
                          std::vector<std::string>& out) {
  for (const char* key :
       {"min_lr", "eta_min", "end_lr", "lr_end", "initial_lr", "lr_warmup_init"}) {
    const auto rate = number_in(params, key);
    if (rate && *rate > base_lr) {
      out.push_back(fmt::format("scheduler.params.{} {} is above the optimizer's learning rate {}",
                                key,
                                text::number(*rate),
                                text::number(base_lr)));
    }
  }
  for (const char* key :
       {"min_lr_rate", "min_lr_ratio", "cos_min_ratio", "warmup_lr_rate", "warmup_min_ratio"}) {
    const auto share = number_in(params, key);
    if (share && *share > 1) {
      out.push_back(
          fmt::format("scheduler.params.{} {} is a learning rate of {}, above the optimizer's {}",
                      key,
                      text::number(*share),
                      text::number(*share * base_lr),
                      text::number(base_lr)));
    }
  }
}

/// Warns of a total of the schedule that its warm-up passes.
void warn_of_total(const json::Value& params,
                   const Schedule& schedule,
                   std::vector<std::string>& out) {
  const std::int64_t warmup = schedule.warmup_steps();
  for (const char* key : {"total_num_steps", "num_training_steps"}) {
    const auto total = number_in(params, key);
    if (!total || *total > static_cast<double>(warmup)) continue;
    out.push_back(
        fmt::format("scheduler.params.{} {} is within the warm-up of {} steps, after which the "
                    "learning rate is {}",
                    key,
                    text::number(*total),
                    warmup,
                    text::number(schedule.lr(warmup + 3))));
  }
}

}  // namespace

std::unique_ptr<Schedule> make_schedule(const SchedulerOptions& options,
                                        const ScheduleContext& context,
                                        const json::Place& place,
                                        config::Problems& problems) {
  const ScheduleFactory factory = schedule_factory(options.type);
  config::Problems part;
  config::Origins origins;
  auto schedule = factory(params_or(options.params, place), context, part, origins);
  config::Problems told;
  for (const config::Problems::Problem& problem : part.list()) {
    const bool has_none =
        problem.kind == config::Problems::Kind::Unknown && problem.fix.starts_with("remove it");
    told.add(problem.place,
             problem.path,
             problem.what,
             has_none ? fmt::format("scheduler.type \"{}\" takes no parameters: name another type",
                                    options.type.empty() ? "constant" : options.type)
                      : problem.fix,
             problem.kind);
  }
  problems.adopt(told, "scheduler.params");
  return schedule;
}

std::unique_ptr<Schedule> later(std::unique_ptr<Schedule> schedule, std::int64_t start) {
  return std::make_unique<LaterSchedule>(std::move(schedule), start);
}

std::vector<std::string> schedule_notes(const SchedulerOptions& options,
                                        const OptimizerOptions& optimizer) {
  if (text::lower(options.type) == "onecycle") {
    const json::Value* const cycles =
        options.params.is_object() ? options.params.find("cycle_momentum") : nullptr;
    const auto rule = rule_if_any(optimizer);
    const bool off = cycles != nullptr && cycles->is_bool() && !cycles->as_bool();
    if (off || rule == nullptr || rule->has_betas()) return {};
    return {
        fmt::format("scheduler.params.cycle_momentum has no effect: {} has no betas, and OneCycle "
                    "leaves its momentum alone, as in DeepSpeed",
                    optimizer.type)};
  }
  const json::Value* const warmup =
      options.params.is_object() ? options.params.find("num_warmup_steps") : nullptr;
  const bool constant = options.type.empty() || text::lower(options.type) == "constant";
  if (!constant || warmup == nullptr || !warmup->is_number() || warmup->as_double() <= 0) return {};
  return {
      "scheduler.params.num_warmup_steps has no effect: constant does not warm up, as in Hugging "
      "Face; constant_with_warmup does"};
}

std::optional<std::string> warmup_note(const SchedulerOptions& options, std::int64_t steps) {
  config::Problems ignored;
  const auto schedule = make_schedule(
      options,
      {.base_lr = 1e-3, .max_steps = steps, .samples_before = [](std::int64_t k) { return k - 1; }},
      {},
      ignored);
  if (schedule->warmup_steps() < steps) return std::nullopt;
  return fmt::format(
      "the run of {} steps ends within the warm-up of {}", steps, schedule->warmup_steps());
}

std::vector<std::string> schedule_warnings(const SchedulerOptions& options,
                                           const json::Value& params,
                                           const Schedule& schedule,
                                           const Rule& rule,
                                           std::int64_t steps) {
  std::vector<std::string> out;
  if (!rule.makes_lr()) warn_of_lowest_rates(params, rule.base_lr(), out);
  if (auto note = warmup_note(options, steps))
    out.push_back(std::move(*note));
  else if (schedule.warmup_steps() > 0)
    warn_of_total(params, schedule, out);
  return out;
}

}  // namespace tessera::optim
