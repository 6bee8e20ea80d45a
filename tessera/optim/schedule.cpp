// SPDX-License-Identifier: Apache-2.0
// The registry of schedules, tessera's own two, and names that are rejected.
#include "tessera/optim/schedule.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule_table.h"

namespace tessera::optim {
namespace {

/// Schedules of known systems that are not functions of the update's number or cannot be written in
/// a file.
struct Refused {
  std::string_view name, why;
};
constexpr std::string_view kNeedsLoss =
    "it follows the evaluation loss, but learning rates here depend only on the update number, so "
    "that a resumed run uses the same rates";
constexpr std::string_view kNeedsFunction = "its parameter is a function in program code";
constexpr Refused kRefused[] = {{"reduce_lr_on_plateau", kNeedsLoss},
                                {"ReduceLROnPlateau", kNeedsLoss},
                                {"LambdaLR", kNeedsFunction},
                                {"MultiplicativeLR", kNeedsFunction}};

class Constant final : public Schedule {
 public:
  explicit Constant(double lr) : lr_(lr) {}
  [[nodiscard]] double lr(std::int64_t) const override { return lr_; }

 private:
  double lr_;
};

struct NoOptions {
  void describe(config::Fields&) {}
};

/// Hugging Face passes these to every schedule; this one does not use them.
constexpr std::string_view kCommon[] = {"num_warmup_steps", "num_training_steps"};

std::unique_ptr<Schedule> make_constant(const json::Value& params,
                                        const ScheduleContext& context,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  json::Value own = params;
  std::erase_if(own.members(), [](const auto& member) {
    return std::find(std::begin(kCommon), std::end(kCommon), member.first) != std::end(kCommon);
  });
  read_params<NoOptions>(own, problems, origins);
  return std::make_unique<Constant>(context.base_lr);
}

TESSERA_LR_SCHEDULE("constant", make_constant);

/// Linear from initial_lr to the optimizer's rate.
double rise(const Given& v, std::int64_t t) {
  const double step = (v.base - v.first) / static_cast<double>(v.warmup);
  return v.first + static_cast<double>(t) * step;
}

/// Half a cosine down to min_lr, which is kept.
double fall(const Given& v, std::int64_t t) {
  const double way =
      std::min(1.0, static_cast<double>(t - v.warmup) / at_least_one(v.total - v.warmup));
  return v.low + (v.base - v.low) * half_cosine(way);
}

const bool kOwnSchedules =
    add_schedules({{.type = "WarmupCosine",
                    .params = {{"initial_lr", &Given::first, 0, {.min = 0}},
                               {"min_lr", &Given::low, 0, {.min = 0}},
                               {"warmup_num_steps", &Given::warmup, 0, {.unit = "steps", .min = 0}},
                               {"total_num_steps", &Given::total, 0, {.unit = "steps", .min = 1}}},
                    .rise = rise,
                    .fall = fall}});

}  // namespace

Registry<ScheduleFactory>& schedules() {
  static Registry<ScheduleFactory> registry("scheduler");
  return registry;
}

ScheduleFactory schedule_factory(std::string_view type) {
  for (const Refused& refused : kRefused) {
    TESSERA_REQUIRE(text::lower(refused.name) != text::lower(type),
                    Unsupported,
                    fmt::format("scheduler \"{}\" is not supported: {}", refused.name, refused.why),
                    "choose one of: " + text::join(schedules().names(), ", "));
  }
  return schedules().get(type.empty() ? "constant" : type);
}

}  // namespace tessera::optim
