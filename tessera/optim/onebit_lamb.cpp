// SPDX-License-Identifier: Apache-2.0
// 1-bit LAMB: LAMB without bias correction until `freeze_step`, then the signs of the momenta with
// frozen mean squares and the trust ratios of the warm-up, adapted. Source: Li et al. 2022, "1-bit
// LAMB: communication efficient large-scale large-batch training with LAMB's convergence speed";
// keys as in DeepSpeed.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "tessera/optim/compressed.h"
#include "tessera/optim/lamb.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kGrain = 16384;
/// Indices of a parameter's scalars: the running mean of its trust ratio, the factor of the last
/// update, and the factor that scales its momentum to the same size as all others.
constexpr std::size_t kRatio = 0, kFactor = 1, kScale = 2;

struct OneBitLambOptions : SignOptions {
  double max_coeff = 10.0, min_coeff = 0.01;
  double coeff_beta = 0.9, factor_max = 4.0, factor_min = 0.5, factor_threshold = 0.1;
  std::int64_t freeze_step = 100'000;

  void describe(config::Fields& f) {
    SignOptions::describe(f);
    f.field("max_coeff", max_coeff, {.text = "Upper bound of the trust ratio.", .min = 0});
    f.field("min_coeff", min_coeff, {.text = "Lower bound of the trust ratio.", .min = 0});
    f.field("freeze_step",
            freeze_step,
            {.text = "Number of initial updates in full precision; later updates exchange signs.",
             .unit = "updates",
             .min = 1});
    f.field("coeff_beta",
            coeff_beta,
            {.text = "Decay rate of the running average of the trust ratio.", .min = 0, .max = 1});
    f.field("factor_max",
            factor_max,
            {.text = "Upper bound of the factor on the trust ratio.", .min = 0});
    f.field("factor_min",
            factor_min,
            {.text = "Lower bound of the factor on the trust ratio.", .min = 0});
    f.field("factor_threshold",
            factor_threshold,
            {.text = "Maximum relative change of the factor in one update.", .min = 0});
  }
};

class OneBitLamb final : public CompressedRule {
 public:
  explicit OneBitLamb(OneBitLambOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::SegmentNorms; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}, {"exp_avg_sq_fresh"}};
  }
  [[nodiscard]] int num_norms(const ParamFacts&) const override { return 2; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }
  [[nodiscard]] Exchange exchange(std::int64_t step) const override {
    return step <= options_.freeze_step ? Exchange::Gradients : Exchange::Signs;
  }
  [[nodiscard]] bool fused() const override { return true; }
  [[nodiscard]] bool keeps_last() const override { return true; }
  [[nodiscard]] int num_scalars() const override { return 3; }
  [[nodiscard]] int num_measures() const override { return 3; }

  void prepare(const ShardView& view, const UpdateScalars& scalars, double* sums) const override {
    TESSERA_ASSERT(view.state.size() == 3);
    ops::LambStep step = step_of(view, scalars);
    step.beta1 = beta1(scalars);
    step.beta2 = beta2(scalars);
    step.add = 1.0 - step.beta1;
    ops::lamb_prepare(
        range_of(view, scalars), view.state[0], view.state[1], step, sums, sums + chunks_of(view));
  }
  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 3 && view.norms.size() == 2);
    move(view, scalars, lr_of(view, scalars) * trust_ratio(view.norms));
    if (scalars.step == options_.freeze_step) {
      std::copy_n(view.state[1], view.numel, view.state[2]);
    }
  }

  void start(std::span<MomentumSize> momenta) const override {
    double united = 0.0;
    for (const MomentumSize& momentum : momenta)
      united += momentum.rms / static_cast<double>(momenta.size());
    for (const MomentumSize& momentum : momenta) {
      momentum.scalars[kFactor] = 1.0;
      // A momentum of zeros cannot be scaled.
      momentum.scalars[kScale] = momentum.rms > 0 ? united / momentum.rms : 1.0;
    }
  }
  void freeze(const CompressedView& view) const override { hold_unseen(view.state[1], view.numel); }
  void local(const CompressedView& view, const UpdateScalars& scalars) const override {
    const double beta = beta1(scalars), scale = view.scalars[kScale];
    const auto keep = static_cast<float>(beta * scale);
    const auto add = static_cast<float>((1.0 - beta) * scalars.grad_scale * scale);
    at::parallel_for(0, view.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      float* const momentum = view.state[0];
      for (std::int64_t i = begin; i < end; ++i)
        momentum[i] = momentum[i] * keep + view.grad[i] * add;
    });
  }
  void received(const CompressedView& view) const override {
    const auto back = static_cast<float>(1.0 / view.scalars[kScale]);
    at::parallel_for(0, view.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        view.state[0][i] *= back;
    });
  }
  void measure(const CompressedView& view,
               const UpdateScalars& scalars,
               double* of_chunks) const override {
    const std::int64_t chunks = chunks_of(view);
    at::parallel_for(
        0, chunks, kGrain / ops::kRuleChunk, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t c = begin; c < end; ++c)
            measure_chunk(view, scalars, c, of_chunks + c, chunks);
        });
  }
  void adapt(std::span<double> of_parameter,
             std::span<const double> measures,
             const UpdateScalars& scalars) const override {
    if (exchange(scalars.step) == Exchange::Gradients) {
      const double ratio = trust_ratio(measures), beta = options_.coeff_beta;
      if (ratio != 1.0) of_parameter[kRatio] = beta * of_parameter[kRatio] + (1.0 - beta) * ratio;
    } else {
      of_parameter[kFactor] = factor(of_parameter[kFactor], measures);
    }
  }
  void finish(const CompressedView& view, const UpdateScalars& scalars) const override {
    move(view, scalars, lr_of(view, scalars) * view.scalars[kRatio] * view.scalars[kFactor]);
  }

 private:
  [[nodiscard]] double beta1(const UpdateScalars& scalars) const {
    return scalars.beta1.value_or(options_.betas[0]);
  }
  [[nodiscard]] double beta2(const UpdateScalars& scalars) const {
    return scalars.beta2.value_or(options_.betas[1]);
  }
  [[nodiscard]] double trust_ratio(std::span<const double> norms) const {
    return lamb_trust_ratio(norms[0], norms[1], options_.min_coeff, options_.max_coeff);
  }
  [[nodiscard]] ops::LambStep step_of(const ShardView& view, const UpdateScalars& scalars) const {
    return {.eps_outside = options_.eps,
            .weight_decay = decay_of(view, scalars, options_.weight_decay)};
  }
  void move(const ShardView& view, const UpdateScalars& scalars, double rate) const {
    ops::lamb_update(
        range_of(view, scalars), view.state[0], view.state[1], step_of(view, scalars), rate);
  }

  /// Computes the squares of the update with and without decay, and the largest ratio of the frozen
  /// denominator to the one that the momenta imply.
  void measure_chunk(const CompressedView& view,
                     const UpdateScalars& scalars,
                     std::int64_t chunk,
                     double* out,
                     std::int64_t stride) const {
    const auto beta = static_cast<float>(beta1(scalars));
    const auto second = static_cast<float>(beta2(scalars)), eps = static_cast<float>(options_.eps);
    const auto decay = static_cast<float>(decay_of(view, scalars, options_.weight_decay));
    const std::int64_t first = chunk * ops::kRuleChunk;
    const std::int64_t end = std::min(first + ops::kRuleChunk, view.numel);
    double whole = 0.0, without = 0.0;
    float largest = 0.0F;
    for (std::int64_t i = first; i < end; ++i) {
      const float momentum = view.state[0][i], frozen = view.state[1][i];
      const float gradient = (momentum - view.last[i] * beta) / (1.0F - beta);
      float& fresh = view.state[2][i];
      fresh = fresh * second + gradient * gradient * (1.0F - second);
      const float divisor = std::sqrt(frozen) + eps, step = momentum / divisor;
      const double decayed = step + decay * view.master[i];
      whole += decayed * decayed;
      without += static_cast<double>(step) * step;
      if (std::isfinite(frozen)) largest = std::max(largest, divisor / (std::sqrt(fresh) + eps));
    }
    out[0] = whole;
    out[stride] = without;
    out[2 * stride] = largest;
  }

  /// measures: |update|, |update without decay|, the largest ratio.
  [[nodiscard]] double factor(double last, std::span<const double> measures) const {
    const double share = measures[0] > 0 ? std::min(1.0, measures[1] / measures[0]) : 1.0;
    double out = measures[2] * share + (1.0 - share);
    out = std::max(std::min(out, options_.factor_max), options_.factor_min);
    out = std::min(out, last * (1.0 + options_.factor_threshold));
    return std::max(out, last * (1.0 - options_.factor_threshold));
  }

  OneBitLambOptions options_;
};

void check_order(double& low,
                 double high,
                 const char* low_key,
                 const char* high_key,
                 const json::Value& params,
                 config::Problems& problems) {
  if (low <= high) return;
  problems.add(place_of(params, low_key),
               low_key,
               std::string("is above ").append(high_key).append(", ").append(text::number(high)),
               std::string("raise ").append(high_key).append(" or lower ").append(low_key));
  low = high;
}

std::unique_ptr<Rule> make_onebit_lamb(const json::Value& params,
                                       config::Problems& problems,
                                       config::Origins& origins) {
  auto options = read_rule_params<OneBitLambOptions>(params, problems, origins);
  options.check(params, problems);
  check_below_one(options.coeff_beta, "coeff_beta", params, problems);
  check_order(options.min_coeff, options.max_coeff, "min_coeff", "max_coeff", params, problems);
  check_order(options.factor_min, options.factor_max, "factor_min", "factor_max", params, problems);
  return std::make_unique<OneBitLamb>(std::move(options));
}

TESSERA_OPTIMIZER("OneBitLamb", make_onebit_lamb);

}  // namespace
}  // namespace tessera::optim
