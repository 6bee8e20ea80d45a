// SPDX-License-Identifier: Apache-2.0
// 0/1 Adam: the mean square is refreshed at growing intervals, and between them gradients are
// exchanged by their signs. Then the mean square is frozen, the ranks make local steps, and
// synchronize at growing intervals. Source: Lu et al. 2022, "Maximizing communication efficiency
// for large-scale training via 0/1 Adam"; keys as in DeepSpeed.
#include <algorithm>
#include <cmath>
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

struct ZeroOneAdamOptions : SignOptions {
  std::int64_t var_freeze_step = 100'000, var_update_scaler = 16, local_step_scaler = 32'678,
               local_step_clipper = 16;

  void describe(config::Fields& f) {
    SignOptions::describe(f);
    f.field("var_freeze_step",
            var_freeze_step,
            {.text = "Number of updates after which the mean square is frozen.",
             .unit = "updates",
             .min = 1});
    f.field(
        "var_update_scaler",
        var_update_scaler,
        {.text = "Number of refreshes of the mean square after which their interval is doubled.",
         .min = 1});
    f.field("local_step_scaler",
            local_step_scaler,
            {.text = "Number of updates after var_freeze_step after which the interval between "
                     "exchanges is doubled.",
             .unit = "updates",
             .min = 1});
    f.field("local_step_clipper",
            local_step_clipper,
            {.text = "Maximum interval between exchanges.", .unit = "updates", .min = 1});
  }
};

/// State: momentum_accumulator (u), exp_avg (m), exp_avg_sq (v). The only scalar is the sum of the
/// learning rates since the last exchange.
class ZeroOneAdam final : public CompressedRule {
 public:
  explicit ZeroOneAdam(ZeroOneAdamOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"momentum_accumulator"}, {"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }
  [[nodiscard]] bool local_weights() const override { return true; }
  [[nodiscard]] bool of_rank(std::string_view state) const override {
    return state != "exp_avg_sq";
  }
  [[nodiscard]] int num_scalars() const override { return 1; }
  [[nodiscard]] bool forgets(std::int64_t step) const override {
    return step == options_.var_freeze_step + 1;
  }
  [[nodiscard]] Exchange exchange(std::int64_t step) const override {
    if (frozen(step)) {
      return step % local_interval(step) == 0 ? Exchange::Signs : Exchange::Nothing;
    }
    return step % refresh_interval(step) == 0 ? Exchange::Gradients : Exchange::Signs;
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    adam(view, view.grad, scalars.beta2.value_or(options_.betas[1]), scalars.grad_scale, scalars);
  }

  void local(const CompressedView& view, const UpdateScalars& scalars) const override {
    const bool own = frozen(scalars.step);
    if (own) view.scalars[0] += lr_of(view, scalars);
    at::parallel_for(0, view.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (own) {
        step_alone(view, scalars, begin, end);
      } else {
        scale_gradient(view, scalars, begin, end);
      }
    });
  }
  void finish(const CompressedView& view, const UpdateScalars& scalars) const override {
    float* const sum = view.state[0];
    if (!frozen(scalars.step)) {
      for (std::int64_t i = 0; i < view.numel; ++i)
        sum[i] = view.state[2][i] == 0.0F ? 0.0F : sum[i];
      adam(view, sum, 1.0, 1.0, scalars);
      std::fill_n(sum, view.numel, 0.0F);
    } else if (exchange(scalars.step) == Exchange::Signs) {
      at::parallel_for(0, view.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
        meet(view, begin, end);
      });
      view.scalars[0] = 0.0;
    }
  }

 private:
  [[nodiscard]] bool frozen(std::int64_t step) const { return step > options_.var_freeze_step; }
  /// Returns the interval, which doubles after every var_update_scaler refreshes.
  [[nodiscard]] std::int64_t refresh_interval(std::int64_t step) const {
    std::int64_t interval = 1, last = 0;
    while (true) {
      last = (last / interval + options_.var_update_scaler) * interval;
      if (step <= last) return interval;
      interval *= 2;
    }
  }
  [[nodiscard]] std::int64_t local_interval(std::int64_t step) const {
    std::int64_t interval = 1;
    const std::int64_t doublings =
        (step - 1 - options_.var_freeze_step) / options_.local_step_scaler;
    for (std::int64_t i = 0; i < doublings && interval < options_.local_step_clipper; ++i)
      interval = std::min(2 * interval, options_.local_step_clipper);
    return interval;
  }
  [[nodiscard]] float divisor(const ShardView& view, std::int64_t i) const {
    return std::sqrt(view.state[2][i]) + static_cast<float>(options_.eps);
  }

  /// AdamW without bias correction; beta2 = 1 leaves v unchanged.
  void adam(const ShardView& view,
            const float* gradient,
            double beta2,
            double grad_scale,
            const UpdateScalars& scalars) const {
    TESSERA_ASSERT(view.state.size() == 3);
    ops::adamw(view.master,
               view.state[1],
               view.state[2],
               gradient,
               view.working,
               view.working_dtype,
               view.numel,
               {.lr = lr_of(view, scalars),
                .beta1 = scalars.beta1.value_or(options_.betas[0]),
                .beta2 = beta2,
                .eps = options_.eps,
                .weight_decay = decay_of(view, scalars, options_.weight_decay),
                .step = scalars.step,
                .grad_scale = grad_scale,
                .bias_correction = false});
  }

  static void scale_gradient(const CompressedView& view,
                             const UpdateScalars& scalars,
                             std::int64_t begin,
                             std::int64_t end) {
    const auto scale = static_cast<float>(scalars.grad_scale);
    for (std::int64_t i = begin; i < end; ++i)
      view.state[0][i] = view.grad[i] * scale;
  }

  /// u accumulates the steps of this rank; at an exchange it is turned back into a momentum.
  /// Elements that had no gradient before v was frozen do not move.
  void step_alone(const CompressedView& view,
                  const UpdateScalars& scalars,
                  std::int64_t begin,
                  std::int64_t end) const {
    const double beta = scalars.beta1.value_or(options_.betas[0]);
    const auto keep = static_cast<float>(beta);
    const auto add = static_cast<float>((1.0 - beta) * scalars.grad_scale);
    const auto lr = static_cast<float>(lr_of(view, scalars));
    const auto decay = static_cast<float>(decay_of(view, scalars, options_.weight_decay));
    const bool meets = exchange(scalars.step) == Exchange::Signs;
    for (std::int64_t i = begin; i < end; ++i) {
      float &sum = view.state[0][i], &momentum = view.state[1][i];
      momentum = momentum * keep + view.grad[i] * add;
      if (view.state[2][i] == 0.0F) continue;
      const float weight = view.master[i] + sum, by = divisor(view, i);
      sum -= lr * (momentum / by + decay * weight);
      if (meets) sum *= by;
    }
  }
  void meet(const CompressedView& view, std::int64_t begin, std::int64_t end) const {
    // With a learning rate of 0 nothing has moved, and there is nothing to divide by.
    const double rates = view.scalars[0];
    const float back = rates > 0 ? static_cast<float>(-1.0 / rates) : 0.0F;
    for (std::int64_t i = begin; i < end; ++i) {
      const float sum = std::exchange(view.state[0][i], 0.0F);
      if (view.state[2][i] == 0.0F || rates == 0) continue;
      view.state[1][i] = sum * back;
      view.master[i] += sum / divisor(view, i);
    }
  }

  ZeroOneAdamOptions options_;
};

std::unique_ptr<Rule> make_zero_one_adam(const json::Value& params,
                                         config::Problems& problems,
                                         config::Origins& origins) {
  auto options = read_rule_params<ZeroOneAdamOptions>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<ZeroOneAdam>(std::move(options));
}

TESSERA_OPTIMIZER("ZeroOneAdam", make_zero_one_adam);

}  // namespace
}  // namespace tessera::optim
