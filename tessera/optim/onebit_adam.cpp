// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam: Adam without bias correction until `freeze_step`, then the signs of the momentum with
// a frozen mean square. Source: Tang et al. 2021, "1-bit Adam: communication efficient large-scale
// training with Adam's convergence speed"; keys as in DeepSpeed.
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/compressed.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kGrain = 16384;

struct OneBitAdamOptions : SignOptions {
  std::int64_t freeze_step = 100'000;

  void describe(config::Fields& f) {
    SignOptions::describe(f);
    f.field("freeze_step",
            freeze_step,
            {.text = "Number of initial updates in full precision; later updates exchange signs.",
             .unit = "updates",
             .min = 1});
  }
};

/// Without bias correction, AdamW's p -= lr wd p; p -= lr m / (sqrt(v) + eps) is the rule. Given
/// the mean of the ranks' momenta as the gradient, beta1 = 0 and beta2 = 1 make it the momentum and
/// leave v unchanged.
class OneBitAdam final : public CompressedRule {
 public:
  explicit OneBitAdam(OneBitAdamOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }
  [[nodiscard]] Exchange exchange(std::int64_t step) const override {
    return step <= options_.freeze_step ? Exchange::Gradients : Exchange::Signs;
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    ops::AdamWScalars step = step_of(view, scalars);
    step.beta1 = scalars.beta1.value_or(options_.betas[0]);
    step.beta2 = scalars.beta2.value_or(options_.betas[1]);
    step.grad_scale = scalars.grad_scale;
    apply(view, view.grad, step);
  }

  void freeze(const CompressedView& view) const override { hold_unseen(view.state[1], view.numel); }
  void local(const CompressedView& view, const UpdateScalars& scalars) const override {
    const double beta = scalars.beta1.value_or(options_.betas[0]);
    const auto keep = static_cast<float>(beta);
    const auto add = static_cast<float>((1.0 - beta) * scalars.grad_scale);
    at::parallel_for(0, view.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      float* const momentum = view.state[0];
      for (std::int64_t i = begin; i < end; ++i)
        momentum[i] = momentum[i] * keep + view.grad[i] * add;
    });
  }
  void finish(const CompressedView& view, const UpdateScalars& scalars) const override {
    ops::AdamWScalars step = step_of(view, scalars);
    step.beta1 = 0.0;
    step.beta2 = 1.0;
    apply(view, view.state[0], step);
  }

 private:
  [[nodiscard]] ops::AdamWScalars step_of(const ShardView& view,
                                          const UpdateScalars& scalars) const {
    return {.lr = lr_of(view, scalars),
            .eps = options_.eps,
            .weight_decay = decay_of(view, scalars, options_.weight_decay),
            .step = scalars.step,
            .bias_correction = false};
  }
  static void apply(const ShardView& view, const float* gradient, const ops::AdamWScalars& step) {
    TESSERA_ASSERT(view.state.size() == 2);
    ops::adamw(view.master,
               view.state[0],
               view.state[1],
               gradient,
               view.working,
               view.working_dtype,
               view.numel,
               step);
  }

  OneBitAdamOptions options_;
};

std::unique_ptr<Rule> make_onebit_adam(const json::Value& params,
                                       config::Problems& problems,
                                       config::Origins& origins) {
  auto options = read_rule_params<OneBitAdamOptions>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<OneBitAdam>(std::move(options));
}

TESSERA_OPTIMIZER("OneBitAdam", make_onebit_adam);

}  // namespace
}  // namespace tessera::optim
