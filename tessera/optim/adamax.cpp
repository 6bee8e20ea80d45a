// SPDX-License-Identifier: Apache-2.0
// Adamax: Adam with the infinity norm. Source and keys: torch.optim.Adamax (Kingma & Ba 2015).
#include <cmath>
#include <utility>

#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct AdamaxOptions {
  double lr = 2e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
    f.field("betas",
            betas,
            {.text = "Decay rates of the running average of the gradient and of the running "
                     "maximum of its magnitude.",
             .min = 0,
             .max = 1});
    f.field("eps",
            eps,
            {.text = "Added to the magnitude of a gradient for numerical stability.", .min = 0});
    f.field("weight_decay",
            weight_decay,
            {.text = "Weight decay, added to the gradient (L2 regularization).", .min = 0});
  }
};

class Adamax final : public Rule {
 public:
  explicit Adamax(AdamaxOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_inf"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    const double beta1 = scalars.beta1.value_or(options_.betas[0]);
    const double correction = 1.0 - std::pow(beta1, static_cast<double>(scalars.step));
    ops::adamax(range_of(view, scalars),
                view.state[0],
                view.state[1],
                {.rate = lr_of(view, scalars) / correction,
                 .beta1 = beta1,
                 .beta2 = scalars.beta2.value_or(options_.betas[1]),
                 .eps = options_.eps,
                 .weight_decay = decay_of(view, scalars, options_.weight_decay)});
  }

 private:
  AdamaxOptions options_;
};

std::unique_ptr<Rule> make_adamax(const json::Value& params,
                                  config::Problems& problems,
                                  config::Origins& origins) {
  auto options = read_rule_params<AdamaxOptions>(params, problems, origins);
  check_betas(options.betas, AdamaxOptions{}.betas, params, problems);
  return std::make_unique<Adamax>(std::move(options));
}

TESSERA_OPTIMIZER("Adamax", make_adamax);

}  // namespace
}  // namespace tessera::optim
