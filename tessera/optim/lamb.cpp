// SPDX-License-Identifier: Apache-2.0
// LAMB in its two common forms: "Lamb" as in DeepSpeed (bias correction of the rate instead of the
// moments, clamped trust ratio, applied to every parameter) and "FusedLAMB" as in apex and
// Colossal-AI (corrected moments, unclamped trust ratio, applied only to parameters with weight
// decay). Source: You et al. 2020; DeepSpeed's csrc/lamb, apex's csrc/multi_tensor_lamb.cu.
#include "tessera/optim/lamb.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {

double lamb_trust_ratio(double weight_norm, double update_norm, double least, double most) {
  if (weight_norm == 0.0 || update_norm == 0.0) return 1.0;
  return std::clamp(weight_norm / update_norm, least, most);
}

namespace {

struct MomentOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.0;
  std::vector<double> betas = {0.9, 0.999};
  bool bias_correction = true;
  ConstructorOptions constructor;

  void describe(config::Fields& f) {
    describe_moments(f, lr, betas, eps);
    f.field(
        "weight_decay", weight_decay, {.text = "Weight decay, as a part of the update.", .min = 0});
    f.field("bias_correction",
            bias_correction,
            {.text = "Apply bias correction to the running averages."});
    constructor.describe(f);
  }
};

struct Betas {
  double first, second;
  [[nodiscard]] double correction1(std::int64_t t) const {
    return 1.0 - std::pow(first, static_cast<double>(t));
  }
  [[nodiscard]] double correction2(std::int64_t t) const {
    return 1.0 - std::pow(second, static_cast<double>(t));
  }
};

/// The parts that both forms have in common: moments and norms first, then the step of the whole
/// parameter.
class LambRule : public Rule {
 public:
  explicit LambRule(const MomentOptions& options) : moments_(options) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::SegmentNorms; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] int num_norms(const ParamFacts&) const override { return 2; }
  [[nodiscard]] double base_lr() const override { return moments_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return moments_.weight_decay; }

  void prepare(const ShardView& view, const UpdateScalars& scalars, double* sums) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    ops::lamb_prepare(range_of(view, scalars),
                      view.state[0],
                      view.state[1],
                      step_of(view, scalars),
                      sums,
                      sums + chunks_of(view));
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2 && view.norms.size() == 2);
    ops::lamb_update(range_of(view, scalars),
                     view.state[0],
                     view.state[1],
                     step_of(view, scalars),
                     rate_of(view, scalars));
  }

 protected:
  [[nodiscard]] virtual ops::LambStep step_of(const ShardView& view,
                                              const UpdateScalars& scalars) const = 0;
  /// Returns learning rate times trust ratio.
  [[nodiscard]] virtual double rate_of(const ShardView& view,
                                       const UpdateScalars& scalars) const = 0;
  [[nodiscard]] double decay(const ShardView& view, const UpdateScalars& scalars) const {
    return decay_of(view, scalars, moments_.weight_decay);
  }
  [[nodiscard]] Betas betas(const UpdateScalars& scalars) const {
    return {scalars.beta1.value_or(moments_.betas[0]), scalars.beta2.value_or(moments_.betas[1])};
  }
  [[nodiscard]] double eps() const { return moments_.eps; }
  [[nodiscard]] bool bias_correction() const { return moments_.bias_correction; }

 private:
  MomentOptions moments_;
};

struct LambOptions : MomentOptions {
  double max_coeff = 10.0, min_coeff = 0.01;
  bool eps_inside_sqrt = false;

  void describe(config::Fields& f) {
    MomentOptions::describe(f);
    f.field("max_coeff", max_coeff, {.text = "Upper bound of the trust ratio.", .min = 0});
    f.field("min_coeff", min_coeff, {.text = "Lower bound of the trust ratio.", .min = 0});
    f.field("eps_inside_sqrt",
            eps_inside_sqrt,
            {.text = "Add eps inside the square root instead of outside."});
  }
};

class Lamb final : public LambRule {
 public:
  explicit Lamb(const LambOptions& options) : LambRule(options), options_(options) {}

 protected:
  [[nodiscard]] ops::LambStep step_of(const ShardView& view,
                                      const UpdateScalars& scalars) const override {
    const Betas betas = this->betas(scalars);
    return {.beta1 = betas.first,
            .beta2 = betas.second,
            .add = 1.0 - betas.first,
            .eps_inside = options_.eps_inside_sqrt ? eps() : 0.0,
            .eps_outside = options_.eps_inside_sqrt ? 0.0 : eps(),
            .weight_decay = decay(view, scalars)};
  }
  [[nodiscard]] double rate_of(const ShardView& view, const UpdateScalars& scalars) const override {
    const Betas betas = this->betas(scalars);
    const double correction = bias_correction() ? std::sqrt(betas.correction2(scalars.step)) /
                                                      betas.correction1(scalars.step)
                                                : 1.0;
    return lr_of(view, scalars) * correction *
           lamb_trust_ratio(view.norms[0], view.norms[1], options_.min_coeff, options_.max_coeff);
  }

 private:
  LambOptions options_;
};

struct FusedLambOptions : MomentOptions {
  bool adam_w_mode = true, grad_averaging = true, use_nvlamb = false;

  FusedLambOptions() {
    eps = 1e-6;
    weight_decay = 0.01;
  }
  void describe(config::Fields& f) {
    MomentOptions::describe(f);
    f.field("adam_w_mode",
            adam_w_mode,
            {.text = "Apply weight decay in the update (true) or as L2 regularization (false)."});
    f.field(
        "grad_averaging",
        grad_averaging,
        {.text = "Scale gradients by 1 - betas[0] when they are added to their running average."});
    f.field("use_nvlamb",
            use_nvlamb,
            {.text = "Apply the trust ratio also to parameters without weight decay."});
  }
};

class FusedLamb final : public LambRule {
 public:
  explicit FusedLamb(const FusedLambOptions& options) : LambRule(options), options_(options) {}

 protected:
  [[nodiscard]] ops::LambStep step_of(const ShardView& view,
                                      const UpdateScalars& scalars) const override {
    const Betas betas = this->betas(scalars);
    const double decay = this->decay(view, scalars);
    return {.beta1 = betas.first,
            .beta2 = betas.second,
            .add = options_.grad_averaging ? 1.0 - betas.first : 1.0,
            .correction1 = bias_correction() ? betas.correction1(scalars.step) : 1.0,
            .correction2 = bias_correction() ? betas.correction2(scalars.step) : 1.0,
            .eps_outside = eps(),
            .l2 = options_.adam_w_mode ? 0.0 : decay,
            .weight_decay = options_.adam_w_mode ? decay : 0.0};
  }
  [[nodiscard]] double rate_of(const ShardView& view, const UpdateScalars& scalars) const override {
    const bool trusted = options_.use_nvlamb || decay(view, scalars) != 0.0;
    constexpr double kNoBound = std::numeric_limits<double>::infinity();
    return lr_of(view, scalars) *
           (trusted ? lamb_trust_ratio(view.norms[0], view.norms[1], 0.0, kNoBound) : 1.0);
  }

 private:
  FusedLambOptions options_;
};

template <class Options>
Options read(const json::Value& params, config::Problems& problems, config::Origins& origins) {
  auto options = read_rule_params<Options>(params, problems, origins);
  check_betas(options.betas, MomentOptions{}.betas, params, problems);
  options.constructor.check(params, problems);
  return options;
}

std::unique_ptr<Rule> make_lamb(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read<LambOptions>(params, problems, origins);
  if (options.min_coeff > options.max_coeff) {
    problems.add(place_of(params, "min_coeff"),
                 "min_coeff",
                 "is above max_coeff, " + text::number(options.max_coeff),
                 "raise max_coeff or lower min_coeff");
    options.min_coeff = options.max_coeff;
  }
  return std::make_unique<Lamb>(options);
}
std::unique_ptr<Rule> make_fused_lamb(const json::Value& params,
                                      config::Problems& problems,
                                      config::Origins& origins) {
  return std::make_unique<FusedLamb>(read<FusedLambOptions>(params, problems, origins));
}

TESSERA_OPTIMIZER("Lamb", make_lamb);
TESSERA_OPTIMIZER("FusedLAMB", make_fused_lamb);

}  // namespace
}  // namespace tessera::optim
