// SPDX-License-Identifier: Apache-2.0
// The registry, and the schedule without parameters.
#include "tessera/optim/schedule.h"

#include "tessera/optim/params.h"

namespace tessera::optim {
namespace {

/// Schedules of the systems whose configurations are understood, that are not here yet.
const std::string kPlanned[] = {"LRRangeTest",
                                "OneCycle",
                                "cosine_with_restarts",
                                "cosine_with_min_lr",
                                "cosine_warmup_with_min_lr",
                                "inverse_sqrt",
                                "piecewise_constant",
                                "polynomial",
                                "reduce_lr_on_plateau",
                                "warmup_stable_decay",
                                "Exponential",
                                "NoDecay",
                                "Noam",
                                "CosineAnnealingLR",
                                "CosineAnnealingWarmupLR",
                                "FlatAnnealingLR",
                                "FlatAnnealingWarmupLR",
                                "LinearWarmupLR",
                                "MultiStepLR",
                                "MultiStepWarmupLR",
                                "OneCycleLR",
                                "PolynomialLR",
                                "PolynomialWarmupLR",
                                "inverse-square-root",
                                "WSD"};

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

std::unique_ptr<Schedule> make_constant(const json::Value& params,
                                        const ScheduleContext& context,
                                        config::Problems& problems,
                                        config::Origins& origins) {
  read_params<NoOptions>(params, problems, origins);
  return std::make_unique<Constant>(context.base_lr);
}

TESSERA_LR_SCHEDULE("constant", make_constant);

}  // namespace

Registry<ScheduleFactory>& schedules() {
  static Registry<ScheduleFactory> registry("scheduler");
  return registry;
}

ScheduleFactory schedule_factory(std::string_view type) {
  return find(schedules(), "scheduler", type.empty() ? "constant" : type, kPlanned);
}

}  // namespace tessera::optim
