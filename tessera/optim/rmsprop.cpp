// SPDX-License-Identifier: Apache-2.0
// RMSprop. Source and keys: torch.optim.RMSprop.
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct RmspropOptions {
  double lr = 0.01, alpha = 0.99, eps = 1e-8, weight_decay = 0.0, momentum = 0.0;
  bool centered = false;

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
    f.field("alpha", alpha, {.text = "Decay rate of the running average of squares.", .min = 0});
    f.field("eps", eps, {.text = "Added to the denominator for numerical stability.", .min = 0});
    f.field("weight_decay",
            weight_decay,
            {.text = "Weight decay, added to the gradient (L2 regularization).", .min = 0});
    f.field("momentum", momentum, {.text = "Momentum coefficient; 0 disables momentum.", .min = 0});
    f.field("centered",
            centered,
            {.text = "Normalize by the standard deviation of the gradient instead of its root mean "
                     "square."});
  }
};

class Rmsprop final : public Rule {
 public:
  explicit Rmsprop(RmspropOptions options) : options_(options) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    std::vector<StateSpec> out = {{"square_avg"}};
    if (options_.momentum > 0.0) out.push_back({"momentum_buffer"});
    if (options_.centered) out.push_back({"grad_avg"});
    return out;
  }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    const bool buffered = options_.momentum > 0.0;
    TESSERA_ASSERT(view.state.size() == 1U + (buffered ? 1U : 0U) + (options_.centered ? 1U : 0U));
    ops::rmsprop(range_of(view, scalars),
                 view.state.front(),
                 buffered ? view.state[1] : nullptr,
                 options_.centered ? view.state.back() : nullptr,
                 {.lr = lr_of(view, scalars),
                  .alpha = options_.alpha,
                  .eps = options_.eps,
                  .momentum = scalars.beta1.value_or(options_.momentum),
                  .weight_decay = decay_of(view, scalars, options_.weight_decay)});
  }

 private:
  RmspropOptions options_;
};

std::unique_ptr<Rule> make_rmsprop(const json::Value& params,
                                   config::Problems& problems,
                                   config::Origins& origins) {
  auto options = read_rule_params<RmspropOptions>(params, problems, origins);
  check_below_one(options.alpha, "alpha", params, problems);
  check_below_one(options.momentum, "momentum", params, problems);
  return std::make_unique<Rmsprop>(options);
}

TESSERA_OPTIMIZER("RMSprop", make_rmsprop);

}  // namespace
}  // namespace tessera::optim
