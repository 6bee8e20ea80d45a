// SPDX-License-Identifier: Apache-2.0
// SGD. Source and keys: torch.optim.SGD.
#include "tessera/optim/sgd.h"

#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {

void SgdOptions::describe(config::Fields& f) {
  f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
  f.field("momentum", momentum, {.text = "Momentum coefficient; 0 disables momentum.", .min = 0});
  f.field("dampening",
          dampening,
          {.text = "Dampening: fraction of a gradient that is not added to the momentum; not "
                   "applied to the first gradient.",
           .min = 0,
           .max = 1});
  f.field("weight_decay",
          weight_decay,
          {.text = "Weight decay, added to the gradient (L2 regularization).", .min = 0});
  f.field("nesterov", nesterov, {.text = "Use Nesterov momentum."});
}

void SgdOptions::check(const json::Value& params, config::Problems& problems) {
  check_below_one(momentum, "momentum", params, problems);
  if (!nesterov || (momentum > 0.0 && dampening == 0.0)) return;
  problems.add(place_of(params, "nesterov"),
               "nesterov",
               "needs momentum above 0 and dampening 0",
               "\"momentum\": 0.9, \"dampening\": 0");
}

namespace {

class Sgd final : public Rule {
 public:
  explicit Sgd(SgdOptions options) : options_(options) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    if (options_.momentum == 0.0) return {};
    return {{"momentum_buffer"}};
  }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    const bool buffered = options_.momentum > 0.0;
    TESSERA_ASSERT(view.state.size() == (buffered ? 1U : 0U));
    // The first gradient is added to the momentum without dampening.
    const bool dampened = buffered && scalars.step > 1;
    ops::sgd(range_of(view, scalars),
             buffered ? view.state[0] : nullptr,
             {.lr = lr_of(view, scalars),
              .momentum = scalars.beta1.value_or(options_.momentum),
              .weight_decay = decay_of(view, scalars, options_.weight_decay),
              .add = dampened ? 1.0 - options_.dampening : 1.0,
              .nesterov = options_.nesterov});
  }

 private:
  SgdOptions options_;
};

std::unique_ptr<Rule> make_sgd(const json::Value& params,
                               config::Problems& problems,
                               config::Origins& origins) {
  auto options = read_rule_params<SgdOptions>(params, problems, origins);
  options.check(params, problems);
  return sgd(options);
}

TESSERA_OPTIMIZER("SGD", make_sgd);

}  // namespace

std::unique_ptr<Rule> sgd(SgdOptions options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace tessera::optim
