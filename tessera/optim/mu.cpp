// SPDX-License-Identifier: Apache-2.0
// MuAdam, MuAdamW and MuSGD: learning rates of mu-P, with which rates found on a narrow model
// transfer to a wide one. Source: Yang et al. 2022 (Tensor Programs V), table 8; the package mup.
//
// width_mult = hidden_size / base_hidden_size. All widths of the model (heads, the feed-forward
// layer) are assumed to grow in that proportion, so that fan_in / base fan_in and fan_out / base
// fan_out of every hidden matrix are also width_mult, and a vector, a table and a head over the
// vocabulary grow along one dimension. Then, as in mup,
//   Adam  hidden matrices: lr / width_mult, weight_decay * width_mult; all others unchanged
//   SGD   hidden matrices unchanged (lr by fan_out over fan_in);
//         all others: lr * width_mult, weight_decay / width_mult
// Only rates are changed: initialization and the scales of attention and output belong to the
// model.
#include <utility>

#include "tessera/optim/adam.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"
#include "tessera/optim/sgd.h"

namespace tessera::optim {
namespace {

template <class Base>
struct MuOptions : Base {
  std::int64_t hidden_size = 1, base_hidden_size = 1;

  void describe(config::Fields& f) {
    Base::describe(f);
    f.field(
        "hidden_size", hidden_size, {.text = "Width of the model.", .min = 1, .required = true});
    f.field("base_hidden_size",
            base_hidden_size,
            {.text = "Width of the base model on which the learning rate was tuned.",
             .min = 1,
             .required = true});
  }
  [[nodiscard]] double width_mult() const {
    return static_cast<double>(hidden_size) / static_cast<double>(base_hidden_size);
  }
};

/// Wraps another rule. The learning rate of some parameters is multiplied and their weight decay
/// divided by the same factor, which keeps the product.
class Mu final : public Rule {
 public:
  Mu(std::unique_ptr<Rule> rule, double of_hidden, double of_others)
      : rule_(std::move(rule)), of_hidden_(of_hidden), of_others_(of_others) {}

  [[nodiscard]] Scope scope(const ParamFacts& facts) const override { return rule_->scope(facts); }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts& facts) const override {
    return rule_->state(facts);
  }
  [[nodiscard]] bool has_betas() const override { return rule_->has_betas(); }
  [[nodiscard]] double base_lr() const override { return rule_->base_lr(); }
  [[nodiscard]] double base_weight_decay() const override { return rule_->base_weight_decay(); }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.facts != nullptr);
    const bool hidden = view.facts->matrix && !view.facts->embedding;
    const double factor = hidden ? of_hidden_ : of_others_;
    ShardView scaled_view = view;
    UpdateScalars scaled = scalars;
    scaled_view.lr_scale = view.lr_scale.value_or(1.0) * factor;
    scaled.decay_scale /= factor;
    rule_->update(scaled_view, scaled);
  }

 private:
  std::unique_ptr<Rule> rule_;  ///< elementwise
  double of_hidden_, of_others_;
};

template <class Base>
MuOptions<Base> read(const json::Value& params,
                     config::Problems& problems,
                     config::Origins& origins) {
  auto options = read_rule_params<MuOptions<Base>>(params, problems, origins);
  options.check(params, problems);
  return options;
}

/// torch's Adam, which mup scales, uses L2 regularization instead of decoupled weight decay.
struct CoupledAdamOptions : AdamOptions {
  CoupledAdamOptions() { adam_w_mode = false; }
};

template <class Base>
std::unique_ptr<Rule> make_adam_like(const json::Value& params,
                                     config::Problems& problems,
                                     config::Origins& origins) {
  const auto options = read<Base>(params, problems, origins);
  const AdamOptions& of_adam = options;
  return std::make_unique<Mu>(adam(of_adam), 1.0 / options.width_mult(), 1.0);
}

std::unique_ptr<Rule> make_mu_adam(const json::Value& params,
                                   config::Problems& problems,
                                   config::Origins& origins) {
  return make_adam_like<CoupledAdamOptions>(params, problems, origins);
}
std::unique_ptr<Rule> make_mu_adamw(const json::Value& params,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  return make_adam_like<AdamOptions>(params, problems, origins);
}
std::unique_ptr<Rule> make_mu_sgd(const json::Value& params,
                                  config::Problems& problems,
                                  config::Origins& origins) {
  const auto options = read<SgdOptions>(params, problems, origins);
  const SgdOptions& of_sgd = options;
  return std::make_unique<Mu>(sgd(of_sgd), 1.0, options.width_mult());
}

TESSERA_OPTIMIZER("MuAdam", make_mu_adam);
TESSERA_OPTIMIZER("MuAdamW", make_mu_adamw);
TESSERA_OPTIMIZER("MuSGD", make_mu_sgd);

}  // namespace
}  // namespace tessera::optim
