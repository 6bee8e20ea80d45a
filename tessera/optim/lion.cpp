// SPDX-License-Identifier: Apache-2.0
// Lion: the sign of an interpolated momentum. Source: Chen et al. 2023, algorithm 2; keys and
// defaults as in DeepSpeed.
#include <utility>

#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct LionOptions {
  double lr = 1e-3, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  ConstructorOptions constructor;

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
    f.field("betas",
            betas,
            {.text = "Interpolation coefficient of the update, and decay rate of the momentum.",
             .min = 0,
             .max = 1});
    f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
    constructor.describe(f);
  }
};

class Lion final : public Rule {
 public:
  explicit Lion(LionOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 1);
    ops::lion(range_of(view, scalars),
              view.state[0],
              {.lr = lr_of(view, scalars),
               .beta1 = scalars.beta1.value_or(options_.betas[0]),
               .beta2 = scalars.beta2.value_or(options_.betas[1]),
               .weight_decay = decay_of(view, scalars, options_.weight_decay)});
  }

 private:
  LionOptions options_;
};

std::unique_ptr<Rule> make_lion(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<LionOptions>(params, problems, origins);
  check_betas(options.betas, LionOptions{}.betas, params, problems);
  options.constructor.check(params, problems);
  return std::make_unique<Lion>(std::move(options));
}

TESSERA_OPTIMIZER("Lion", make_lion);

}  // namespace
}  // namespace tessera::optim
