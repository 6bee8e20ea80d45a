// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW. Source: Kingma & Ba 2015, Loshchilov & Hutter 2019; keys as in DeepSpeed.
#include <utility>

#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/params.h"
#include "tessera/optim/rule.h"

namespace tessera::optim {
namespace {

struct AdamWOptions {
  double lr = 1e-3, eps = 1e-8, weight_decay = 0.01;
  std::vector<double> betas = {0.9, 0.999};
  bool bias_correction = true, torch_adam = false, adam_w_mode = true;

  void describe(config::Fields& f) {
    f.field("lr", lr, {.text = "Learning rate, before the schedule.", .min = 0});
    f.field("betas",
            betas,
            {.text = "Decay of the running means of the gradient and of its square.",
             .min = 0,
             .max = 1});
    f.field("eps", eps, {.text = "Added to the divisor.", .min = 0});
    f.field("weight_decay", weight_decay, {.text = "Decay of the weights.", .min = 0});
    f.field("bias_correction",
            bias_correction,
            {.text = "Correct the running means for their start at zero."});
    f.field("torch_adam",
            torch_adam,
            {.text = "DeepSpeed's choice between two implementations of the same rule; both give "
                     "this one."});
    f.field("adam_w_mode",
            adam_w_mode,
            {.text = "Decay the weights themselves (true) or through the gradient (false)."});
  }
};
struct AdamOptions : AdamWOptions {
  AdamOptions() { weight_decay = 0.0; }
};

class Adam final : public Rule {
 public:
  explicit Adam(AdamWOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    const double decay = view.weight_decay.value_or(options_.weight_decay) * scalars.decay_scale;
    const ops::AdamWScalars step{.lr = scalars.lr * view.lr_scale,
                                 .beta1 = scalars.beta1.value_or(options_.betas[0]),
                                 .beta2 = scalars.beta2.value_or(options_.betas[1]),
                                 .eps = options_.eps,
                                 .weight_decay = view.decay ? decay : 0.0,
                                 .step = scalars.step,
                                 .grad_scale = scalars.grad_scale,
                                 .decoupled = options_.adam_w_mode,
                                 .bias_correction = options_.bias_correction};
    ops::adamw(view.master,
               view.state[0],
               view.state[1],
               view.grad,
               view.working,
               view.working_dtype,
               view.numel,
               step);
  }

 private:
  AdamWOptions options_;
};

/// Clipping belongs to another key: the user learns which one, and the others are still read.
json::Value without_max_grad_norm(const json::Value& params, config::Problems& problems) {
  json::Value out = params;
  if (!params.is_object()) return out;
  std::erase_if(out.members(), [&](const json::Value::Member& member) {
    if (member.first != "max_grad_norm") return false;
    problems.add(member.second.key_place,
                 member.first,
                 "clipping is not a parameter of the optimizer",
                 "move it to the top: \"gradient_clipping\": " + member.second.dump());
    return true;
  });
  return out;
}

void check_betas(AdamWOptions& options, const json::Value& params, config::Problems& problems) {
  bool fits = options.betas.size() == 2;
  for (const double beta : options.betas)
    fits = fits && beta < 1.0;
  if (fits) return;
  const json::Value* betas = params.find("betas");
  problems.add(betas == nullptr ? params.place : betas->place,
               "betas",
               "expected two numbers, each below 1",
               "\"betas\": [0.9, 0.999]");
  options.betas = {0.9, 0.999};
}

template <class Options>
std::unique_ptr<Rule> make(const json::Value& params,
                           config::Problems& problems,
                           config::Origins& origins) {
  const json::Value source = without_max_grad_norm(params, problems);
  AdamWOptions options = read_params<Options>(source, problems, origins);
  check_betas(options, source, problems);
  return std::make_unique<Adam>(std::move(options));
}

std::unique_ptr<Rule> make_adamw(const json::Value& params,
                                 config::Problems& problems,
                                 config::Origins& origins) {
  return make<AdamWOptions>(params, problems, origins);
}
std::unique_ptr<Rule> make_adam(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  return make<AdamOptions>(params, problems, origins);
}

TESSERA_OPTIMIZER("AdamW", make_adamw);
TESSERA_OPTIMIZER("Adam", make_adam);

}  // namespace
}  // namespace tessera::optim
