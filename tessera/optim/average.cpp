// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/average.h"

#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/transport.h"
#include "tessera/tensor/upload.h"

namespace tessera::optim {
namespace {

/// The view that the rule itself asked for: the average is the last state.
ShardView without_average(const ShardView& view) {
  TESSERA_ASSERT(!view.state.empty());
  ShardView out = view;
  out.state.pop_back();
  return out;
}

class AveragedRule final : public Rule {
 public:
  AveragedRule(std::unique_ptr<Rule> rule, const AverageOptions& options)
      : rule_(std::move(rule)), options_(options), decay_(options.decay.value()) {}

  [[nodiscard]] Scope scope(const ParamFacts& facts) const override { return rule_->scope(facts); }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts& facts) const override {
    std::vector<StateSpec> out = rule_->state(facts);
    out.push_back({.name = std::string(kAverageState), .begins_as_weights = true});
    return out;
  }
  [[nodiscard]] int num_norms(const ParamFacts& facts) const override {
    return rule_->num_norms(facts);
  }
  void prepare(const ShardView& view, const UpdateScalars& scalars, double* sums) const override {
    rule_->prepare(without_average(view), scalars, sums);
  }
  void transform(const MatrixView& view, const UpdateScalars& scalars) const override {
    rule_->transform(view, scalars);
  }
  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    rule_->update(without_average(view), scalars);
    if (scalars.step > options_.start && scalars.step % options_.every != 0) return;
    const double kept = scalars.step > options_.start ? decay_ : 0.0;
    if (view.device.kind != DeviceKind::Cpu) return move_on_device(view, kept);
    const float* const weights = view.master;
    float* const average = view.state.back();
    constexpr std::int64_t kGrain = 1 << 15;
    at::parallel_for(0, view.numel, kGrain, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        average[i] = static_cast<float>(kept * static_cast<double>(average[i]) +
                                        (1.0 - kept) * static_cast<double>(weights[i]));
      }
    });
  }
  [[nodiscard]] bool host_only() const override { return rule_->host_only(); }
  [[nodiscard]] bool has_betas() const override { return rule_->has_betas(); }
  [[nodiscard]] double base_lr() const override { return rule_->base_lr(); }
  [[nodiscard]] bool makes_lr() const override { return rule_->makes_lr(); }
  [[nodiscard]] double base_weight_decay() const override { return rule_->base_weight_decay(); }

 private:
  /// The same arithmetic by operations of the device.
  static void move_on_device(const ShardView& view, double kept) {
    const auto count = static_cast<std::size_t>(view.numel);
    const at::Tensor average = tensor_of({view.state.back(), count, DType::F32, view.device}),
                     weights = tensor_of({view.master, count, DType::F32, view.device});
    average.copy_(average.to(at::kDouble) * kept + weights.to(at::kDouble) * (1.0 - kept));
  }

  std::unique_ptr<Rule> rule_;
  AverageOptions options_;
  double decay_;
};

}  // namespace

void AverageOptions::describe(config::Fields& f) {
  f.field("decay",
          decay,
          {.text = "Keep a moving average of the weights (EMA): decay x average + (1 - decay) x "
                   "weights after every update. eval.weights \"ema\" evaluates it.",
           .min = 0,
           .max = 1,
           .default_text = "no average"});
  f.field("every",
          every,
          {.text = "Update the average after every N updates.",
           .unit = "updates",
           .min = 1,
           .max = 1e12});
  f.field("start",
          start,
          {.text = "Number of updates after which averaging begins; until then the average is the "
                   "weights themselves.",
           .unit = "updates",
           .min = 0,
           .max = 1e12});
}

std::unique_ptr<Rule> with_average(std::unique_ptr<Rule> rule, const AverageOptions& options) {
  TESSERA_ASSERT(rule->compressed() == nullptr);
  return std::make_unique<AveragedRule>(std::move(rule), options);
}

}  // namespace tessera::optim
