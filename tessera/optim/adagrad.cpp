// SPDX-License-Identifier: Apache-2.0
// Adagrad. Source and keys: torch.optim.Adagrad (Duchi et al. 2011); DeepSpeed's is the same.
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct AdagradOptions {
  double lr = 0.01, lr_decay = 0.0, weight_decay = 0.0, initial_accumulator_value = 0.0,
         eps = 1e-10;
  ConstructorOptions constructor;

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
    f.field(
        "lr_decay",
        lr_decay,
        {.text = "The learning rate of update t is divided by 1 + (t - 1) lr_decay.", .min = 0});
    f.field("weight_decay",
            weight_decay,
            {.text = "Weight decay, added to the gradient (L2 regularization).", .min = 0});
    f.field("initial_accumulator_value",
            initial_accumulator_value,
            {.text = "Initial value of the sum of squared gradients.", .min = 0});
    f.field("eps", eps, {.text = "Added to the denominator for numerical stability.", .min = 0});
    constructor.describe(f);
  }
};

class Adagrad final : public Rule {
 public:
  explicit Adagrad(AdagradOptions options) : options_(options) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override { return {{"sum"}}; }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 1);
    const double past = static_cast<double>(scalars.step - 1);
    ops::adagrad(range_of(view, scalars),
                 view.state[0],
                 {.lr = lr_of(view, scalars) / (1.0 + past * options_.lr_decay),
                  .eps = options_.eps,
                  .weight_decay = decay_of(view, scalars, options_.weight_decay),
                  // State is zero-initialized; the first update sets the initial value.
                  .initial = scalars.step == 1 ? options_.initial_accumulator_value : 0.0});
  }

 private:
  AdagradOptions options_;
};

std::unique_ptr<Rule> make_adagrad(const json::Value& params,
                                   config::Problems& problems,
                                   config::Origins& origins) {
  const auto options = read_rule_params<AdagradOptions>(params, problems, origins);
  options.constructor.check(params, problems);
  return std::make_unique<Adagrad>(options);
}

TESSERA_OPTIMIZER("Adagrad", make_adagrad);

}  // namespace
}  // namespace tessera::optim
