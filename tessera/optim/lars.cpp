// SPDX-License-Identifier: Apache-2.0
// LARS: momentum SGD whose rate is scaled by the ratio of weight norm to gradient norm of each
// parameter. Source: You et al. 2017, algorithm 1.
#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct LarsOptions {
  double lr = 1e-3, momentum = 0.9, weight_decay = 0.0, trust_coefficient = 1e-3, eps = 0.0;
  bool exclude_vectors = true;

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
    f.field("momentum", momentum, {.text = "Momentum coefficient; 0 disables momentum.", .min = 0});
    f.field("weight_decay",
            weight_decay,
            {.text = "Weight decay, added to the gradient (L2 regularization).", .min = 0});
    f.field("trust_coefficient",
            trust_coefficient,
            {.text = "Trust coefficient: the local rate if weights and gradient have equal norms.",
             .min = 0,
             .above_min = true});
    f.field(
        "eps",
        eps,
        {.text = "Added to the denominator of the local rate for numerical stability.", .min = 0});
    f.field("exclude_vectors",
            exclude_vectors,
            {.text = "Update biases and norm gains without a local rate, by plain momentum SGD."});
  }
};

/// b = momentum b + lr local (g + wd p); p -= b, local = trust |p| / (|g| + wd |p| + eps), 1 if one
/// of the norms is 0.
class Lars final : public Rule {
 public:
  explicit Lars(LarsOptions options) : options_(options) {}

  [[nodiscard]] Scope scope(const ParamFacts& facts) const override {
    return options_.exclude_vectors && !facts.matrix ? Scope::Elementwise : Scope::SegmentNorms;
  }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    if (options_.momentum == 0.0) return {};
    return {{"momentum_buffer"}};
  }
  [[nodiscard]] int num_norms(const ParamFacts& facts) const override {
    return scope(facts) == Scope::SegmentNorms ? 2 : 0;
  }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void prepare(const ShardView& view, const UpdateScalars&, double* sums) const override {
    ops::chunk_square_sums(view.master, view.numel, ops::kRuleChunk, sums, view.device);
    ops::chunk_square_sums(
        view.grad, view.numel, ops::kRuleChunk, sums + chunks_of(view), view.device);
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    const bool buffered = options_.momentum > 0.0;
    TESSERA_ASSERT(view.state.size() == (buffered ? 1U : 0U));
    const double decay = decay_of(view, scalars, options_.weight_decay);
    ops::sgd(range_of(view, scalars),
             buffered ? view.state[0] : nullptr,
             {.lr = 1.0,
              .momentum = scalars.beta1.value_or(options_.momentum),
              .weight_decay = decay,
              .add = lr_of(view, scalars) * local_rate(view, scalars, decay)});
  }

 private:
  [[nodiscard]] double local_rate(const ShardView& view,
                                  const UpdateScalars& scalars,
                                  double decay) const {
    if (view.norms.empty()) return 1.0;
    const double weights = view.norms[0], gradient = view.norms[1] * scalars.grad_scale;
    if (weights == 0.0 || gradient == 0.0) return 1.0;
    return options_.trust_coefficient * weights / (gradient + decay * weights + options_.eps);
  }

  LarsOptions options_;
};

std::unique_ptr<Rule> make_lars(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<LarsOptions>(params, problems, origins);
  check_below_one(options.momentum, "momentum", params, problems);
  return std::make_unique<Lars>(options);
}

TESSERA_OPTIMIZER("LARS", make_lars);

}  // namespace
}  // namespace tessera::optim
