// SPDX-License-Identifier: Apache-2.0
// NAdam: Adam with Nesterov momentum. Source and keys: torch.optim.NAdam (Dozat 2016).
#include <cmath>
#include <utility>

#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct NAdamOptions {
  double lr = 2e-3, eps = 1e-8, weight_decay = 0.0, momentum_decay = 4e-3;
  std::vector<double> betas = {0.9, 0.999};
  bool decoupled_weight_decay = false;

  void describe(config::Fields& f) {
    describe_moments(f, lr, betas, eps);
    f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
    f.field("momentum_decay",
            momentum_decay,
            {.text = "Rate at which the momentum coefficient approaches betas[0].", .min = 0});
    f.field(
        "decoupled_weight_decay",
        decoupled_weight_decay,
        {.text = "Use decoupled weight decay as in AdamW (true) or L2 regularization (false)."});
  }
};

double mu(double beta1, double momentum_decay, std::int64_t t) {
  return beta1 * (1.0 - 0.5 * std::pow(0.96, static_cast<double>(t) * momentum_decay));
}

/// Product of mu from 1 to t. The factors are below beta1: beyond the bound the product is
/// negligible compared to 1, and the loop ends after at most 41 / (1 - beta1) factors.
double mu_product(double beta1, double momentum_decay, std::int64_t t) {
  constexpr double kNothing = 1e-18;
  double product = 1.0;
  for (std::int64_t i = 1; i <= t && product > kNothing; ++i)
    product *= mu(beta1, momentum_decay, i);
  return product;
}

class NAdam final : public Rule {
 public:
  explicit NAdam(NAdamOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    const std::int64_t t = scalars.step;
    const double lr = lr_of(view, scalars);
    const double decay = decay_of(view, scalars, options_.weight_decay);
    const double beta1 = scalars.beta1.value_or(options_.betas[0]);
    const double beta2 = scalars.beta2.value_or(options_.betas[1]);
    const double now = mu(beta1, options_.momentum_decay, t),
                 next = mu(beta1, options_.momentum_decay, t + 1),
                 product = mu_product(beta1, options_.momentum_decay, t);
    const bool decoupled = options_.decoupled_weight_decay;
    ops::nadam(range_of(view, scalars),
               view.state[0],
               view.state[1],
               {.beta1 = beta1,
                .beta2 = beta2,
                .eps = options_.eps,
                .grad_rate = lr * (1.0 - now) / (1.0 - product),
                .avg_rate = lr * next / (1.0 - product * next),
                .correction2 = 1.0 - std::pow(beta2, static_cast<double>(t)),
                .l2 = decoupled ? 0.0 : decay,
                .decay = decoupled ? lr * decay : 0.0});
  }

 private:
  NAdamOptions options_;
};

std::unique_ptr<Rule> make_nadam(const json::Value& params,
                                 config::Problems& problems,
                                 config::Origins& origins) {
  auto options = read_rule_params<NAdamOptions>(params, problems, origins);
  check_betas(options.betas, NAdamOptions{}.betas, params, problems);
  return std::make_unique<NAdam>(std::move(options));
}

TESSERA_OPTIMIZER("NAdam", make_nadam);

}  // namespace
}  // namespace tessera::optim
