// SPDX-License-Identifier: Apache-2.0
// WarmupCosine: linear from initial_lr to the optimizer's rate, then half a cosine down to min_lr,
// which is kept.
#include <algorithm>

#include "tessera/optim/params.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/schedules/curve.h"

namespace tessera::optim {
namespace {

struct Options {
  double initial_lr = 0.0, min_lr = 0.0;
  std::int64_t warmup = 0, total = 0;

  void describe(config::Fields& f) {
    f.field("initial_lr", initial_lr, {.text = "Learning rate of the first update.", .min = 0});
    f.field("min_lr", min_lr, {.text = "Learning rate at the end.", .min = 0});
    f.field("warmup_num_steps",
            warmup,
            {.text = "Number of steps from initial_lr to the optimizer's learning rate.",
             .unit = "steps",
             .min = 0});
    f.field("total_num_steps",
            total,
            {.text = "Step at which min_lr is reached.",
             .unit = "steps",
             .min = 1,
             .default_text = "trainer.max_steps"});
  }
};

class WarmupCosine final : public Schedule {
 public:
  WarmupCosine(const Options& options, double peak) : options_(options), peak_(peak) {}

  [[nodiscard]] std::int64_t warmup_steps() const override { return options_.warmup; }
  [[nodiscard]] double lr(std::int64_t update) const override {
    const std::int64_t t = update - 1, W = options_.warmup;
    if (t < W) {
      const double step = (peak_ - options_.initial_lr) / static_cast<double>(W);
      return options_.initial_lr + static_cast<double>(t) * step;
    }
    const double way = std::min(1.0, static_cast<double>(t - W) / at_least_one(options_.total - W));
    return options_.min_lr + (peak_ - options_.min_lr) * half_cosine(way);
  }

 private:
  Options options_;
  double peak_;
};

std::unique_ptr<Schedule> make_warmup_cosine(const json::Value& params,
                                             const ScheduleContext& context,
                                             config::Problems& problems,
                                             config::Origins& origins) {
  Options options = read_params<Options>(params, problems, origins);
  if (options.total == 0) options.total = context.max_steps;
  return std::make_unique<WarmupCosine>(options, context.base_lr);
}

TESSERA_LR_SCHEDULE("WarmupCosine", make_warmup_cosine);

}  // namespace
}  // namespace tessera::optim
