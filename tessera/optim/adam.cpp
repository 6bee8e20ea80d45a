// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW under all their names. Source: Kingma & Ba 2015, Loshchilov & Hutter 2019; keys as
// in DeepSpeed and Colossal-AI, hold_steps as in BMTrain; in eight bits Dettmers et al. 2021,
// "8-bit optimizers via block-wise quantization", names and parameters as in bitsandbytes; in four
// bits Li, Chen, Zhu 2023, "Memory efficient optimizers with 4-bit states", as in torchao.
#include "tessera/optim/adam.h"

#include <utility>

#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/eight_bit.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {

void AdamOptions::describe(config::Fields& f) {
  describe_moments(f, lr, betas, eps);
  f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
  f.field("bias_correction",
          bias_correction,
          {.text = "Apply bias correction to the running averages."});
  f.field("torch_adam",
          torch_adam,
          {.text = "Selects one of two equivalent implementations in DeepSpeed; no effect here."});
  f.field("adam_w_mode",
          adam_w_mode,
          {.text = "Use decoupled weight decay as in AdamW (true) or L2 regularization (false)."});
  f.field(
      "adamw_mode", adamw_mode, {.text = "Alias of adam_w_mode.", .default_text = "adam_w_mode"});
  f.field(
      "hold_steps",
      hold_steps,
      {.text = "Number of initial updates that change the running averages but not the weights.",
       .unit = "steps",
       .min = 0});
  constructor.describe(f);
}

void AdamOptions::check(const json::Value& params, config::Problems& problems) {
  check_betas(betas, AdamOptions{}.betas, params, problems);
  constructor.check(params, problems);
  if (!adamw_mode) return;
  if (params.find("adam_w_mode") != nullptr && *adamw_mode != adam_w_mode) {
    problems.add(place_of(params, "adamw_mode"),
                 "adamw_mode",
                 "differs from adam_w_mode, which is the same option",
                 "remove one of them");
  }
  adam_w_mode = *adamw_mode;
}

namespace {

class Adam final : public Rule {
 public:
  explicit Adam(AdamOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts&) const override { return Scope::Elementwise; }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts&) const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    const bool held = scalars.step <= options_.hold_steps;
    const ops::AdamWScalars step{.lr = held ? 0.0 : lr_of(view, scalars),
                                 .beta1 = scalars.beta1.value_or(options_.betas[0]),
                                 .beta2 = scalars.beta2.value_or(options_.betas[1]),
                                 .eps = options_.eps,
                                 .weight_decay = decay_of(view, scalars, options_.weight_decay),
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
               step,
               view.device);
  }

 private:
  AdamOptions options_;
};

struct AdamWOptions : AdamOptions {
  AdamWOptions() { weight_decay = 0.01; }
};

std::unique_ptr<Rule> make_adamw(const json::Value& params,
                                 config::Problems& problems,
                                 config::Origins& origins) {
  auto options = read_rule_params<AdamWOptions>(params, problems, origins);
  options.check(params, problems);
  options.adam_w_mode =
      true;  // as in DeepSpeed and torch, the name decides, regardless of the parameter
  return adam(std::move(options));
}
std::unique_ptr<Rule> make_adam(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<AdamOptions>(params, problems, origins);
  options.check(params, problems);
  return adam(std::move(options));
}

TESSERA_OPTIMIZER("AdamW", make_adamw);
TESSERA_OPTIMIZER("Adam", make_adam);

// The same rule under the names of implementations for other devices.
const RuleFactory kFusedAdam = make_adam, kCpuAdam = make_adam, kDeepSpeedCpuAdam = make_adam,
                  kHybridAdam = make_adam;
TESSERA_OPTIMIZER("FusedAdam", kFusedAdam);
TESSERA_OPTIMIZER("CPUAdam", kCpuAdam);
TESSERA_OPTIMIZER("DeepSpeedCPUAdam", kDeepSpeedCpuAdam);
TESSERA_OPTIMIZER("HybridAdam", kHybridAdam);

struct Adam8bitOptions : AdamOptions {
  std::int64_t min_8bit_size = 4096;

  void describe(config::Fields& f) {
    AdamOptions::describe(f);
    f.field("min_8bit_size",
            min_8bit_size,
            {.text = "Parameters with fewer elements keep their moments in the type of the run's "
                     "optimizer states (fp32, or bf16 with bf16_optimizer_states).",
             .unit = "elements",
             .min = 1});
  }
};
struct AdamW8bitOptions : Adam8bitOptions {
  AdamW8bitOptions() { weight_decay = 0.01; }
};

/// How the two moments of a parameter are stored.
struct NarrowMoments {
  KeptIn first = KeptIn::Type, second = KeptIn::Type;
  std::int64_t min_size = 1;  ///< smaller parameters keep the type of the run
  std::int64_t multiple = 1;  ///< so do those whose size is no multiple of it
};

class NarrowAdam final : public EightBitRule {
 public:
  NarrowAdam(const AdamOptions& options, const NarrowMoments& moments)
      : adam_(options), moments_(moments) {}

  [[nodiscard]] bool host_only() const override { return false; }
  [[nodiscard]] KeptIn kept_in(const ParamFacts& facts, std::size_t index) const override {
    if (facts.numel() < moments_.min_size || facts.numel() % moments_.multiple != 0)
      return KeptIn::Type;
    return index == 0 ? moments_.first : moments_.second;
  }
  [[nodiscard]] Scope scope(const ParamFacts& facts) const override { return adam_.scope(facts); }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts& facts) const override {
    return adam_.state(facts);
  }
  [[nodiscard]] double base_lr() const override { return adam_.base_lr(); }
  [[nodiscard]] double base_weight_decay() const override { return adam_.base_weight_decay(); }
  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    adam_.update(view, scalars);
  }

 private:
  Adam adam_;
  NarrowMoments moments_;
};

template <class Options>
std::unique_ptr<Rule> make_8bit(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<Options>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<NarrowAdam>(options,
                                      NarrowMoments{.first = KeptIn::Codes8,
                                                    .second = KeptIn::Codes8Positive,
                                                    .min_size = options.min_8bit_size});
}

const RuleFactory kAdam8bit = make_8bit<Adam8bitOptions>, kAdamW8bit = make_8bit<AdamW8bitOptions>,
                  kPagedAdam8bit = kAdam8bit, kPagedAdamW8bit = kAdamW8bit;
TESSERA_OPTIMIZER("Adam8bit", kAdam8bit);
TESSERA_OPTIMIZER("AdamW8bit", kAdamW8bit);
TESSERA_OPTIMIZER("PagedAdam8bit", kPagedAdam8bit);
TESSERA_OPTIMIZER("PagedAdamW8bit", kPagedAdamW8bit);

struct Adam4bitOptions : AdamOptions {
  std::int64_t min_4bit_size = 4096;

  void describe(config::Fields& f) {
    AdamOptions::describe(f);
    f.field("min_4bit_size",
            min_4bit_size,
            {.text = "Parameters with fewer elements keep their moments in the type of the run's "
                     "optimizer states (fp32, or bf16 with bf16_optimizer_states), and so do those "
                     "whose number of elements is no multiple of 128.",
             .unit = "elements",
             .min = 1});
  }
};
struct AdamW4bitOptions : Adam4bitOptions {
  AdamW4bitOptions() { weight_decay = 0.01; }
};

template <class Options>
std::unique_ptr<Rule> make_4bit(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<Options>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<NarrowAdam>(options,
                                      NarrowMoments{.first = KeptIn::Codes4,
                                                    .second = KeptIn::Codes4Positive,
                                                    .min_size = options.min_4bit_size,
                                                    .multiple = 128});
}

const RuleFactory kAdam4bit = make_4bit<Adam4bitOptions>, kAdamW4bit = make_4bit<AdamW4bitOptions>;
TESSERA_OPTIMIZER("Adam4bit", kAdam4bit);
TESSERA_OPTIMIZER("AdamW4bit", kAdamW4bit);

}  // namespace

std::unique_ptr<Rule> adam(AdamOptions options) {
  return std::make_unique<Adam>(std::move(options));
}

}  // namespace tessera::optim
