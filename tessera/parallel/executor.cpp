// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/executor.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

/// Adds the time until it dies to `seconds`.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds), start_(now_s()) {}
  ~Timed() { seconds_ += now_s() - start_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& seconds_;
  double start_;
};

/// Runs fn; libtorch's exceptions become ours, with the block that raised them.
template <class Fn>
auto named(const std::string& block, const char* what, Fn fn) {
  try {
    return fn();
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(
        Error::Kind::Memory,
        fmt::format(
            "out of memory in {} of block {}: {}", what, block, error.what_without_backtrace()),
        "use a smaller micro-batch or a shorter sequence");
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("not enough memory") != std::string::npos ||
        text.find("allocate memory") != std::string::npos) {
      throw Error(Error::Kind::Memory,
                  fmt::format("out of memory in {} of block {}: {}", what, block, text),
                  "use a smaller micro-batch or a shorter sequence");
    }
    throw Error(Error::Kind::Bug, fmt::format("{} of block {}: {}", what, block, text), "");
  }
}

/// Inputs of a block, cut off from the block before: gradients stop here and are handed over by
/// hand.
nn::Flow detached(const nn::Flow& flow, std::vector<at::Tensor>& inputs) {
  nn::Flow out = flow;
  for (at::Tensor& tensor : out.diff) {
    tensor = tensor.detach();
    tensor.set_requires_grad(true);
    inputs.push_back(tensor);
  }
  return out;
}

}  // namespace

StepOutput Executor::train(const std::vector<Action>& actions, const StepInput& input) {
  StepOutput output;
  output.losses.assign(static_cast<std::size_t>(input.num_micros), 0.0);
  std::vector<std::optional<Micro>> micros(static_cast<std::size_t>(input.num_micros));
  std::vector<std::vector<double>> denominators;
  for (Policy* policy : policies_)
    policy->begin(actions);
  for (const Action& action : actions) {
    auto& slot = micros[static_cast<std::size_t>(action.micro)];
    if (action.kind == Do::Load) {
      const Timed timed(times_.data);
      nn::StepContext context(nn::Mode::Train, input.seed);
      context.step = input.step;
      context.micro = action.micro;
      context.set_recompute_regions(recompute_.regions);
      slot.emplace(Micro{input.load(action.micro), std::move(context), {}});
      denominators.push_back(model_.objective().denominators(slot->batch));
      if (static_cast<int>(denominators.size()) == input.num_micros) {
        output.denominators = input.global_denominators(denominators);
      }
    } else if (slot->batch.size() == 0) {
      skip(action, input.num_micros);
    } else if (action.kind == Do::Forward) {
      const Timed timed(times_.forward);
      forward(action, *slot, input, output);
    } else {
      const Timed timed(times_.backward);
      backward(action, *slot, input, output);
      slot.reset();
    }
  }
  for (Policy* policy : policies_)
    policy->end();
  return output;
}

bool Executor::runs_again(int block) const {
  const auto b = static_cast<std::size_t>(block);
  return block + 1 < model_.num_blocks() && b < recompute_.blocks.size() && recompute_.blocks[b];
}

/// A micro-batch that has no samples on this rank still takes part in what the policies do
/// together.
void Executor::skip(const Action& action, int num_micros) {
  const int blocks = model_.num_blocks();
  for (int i = 0; i < blocks; ++i) {
    const int b = action.kind == Do::Forward ? i : blocks - 1 - i;
    const BlockRun run{b, action.micro, num_micros};
    for (Policy* policy : policies_)
      policy->before(action, run);
    for (Policy* policy : policies_)
      policy->after(action, run);
  }
}

void Executor::forward(const Action& action,
                       Micro& micro,
                       const StepInput& input,
                       StepOutput& output) {
  micro.context.batch = &micro.batch;
  micro.context.tensor = model_.tensor_parallel();
  nn::Flow flow;
  for (int b = 0; b < model_.num_blocks(); ++b) {
    const at::AutoGradMode grad(!runs_again(b));
    const BlockRun run{b, action.micro, input.num_micros};
    for (Policy* policy : policies_)
      policy->before(action, run);
    micro.context.block_name = model_.name(b);
    Saved saved;
    nn::Flow in = detached(flow, saved.inputs);
    saved.again = runs_again(b);
    if (saved.again) saved.in = in;
    saved.out = named(model_.name(b), "forward", [&] {
      return model_.block(b).forward(std::move(in), micro.batch, micro.context);
    });
    for (const nn::Term& term : saved.out.terms) {
      const double denominator = output.denominators.at(static_cast<std::size_t>(term.denominator));
      output.losses[static_cast<std::size_t>(action.micro)] +=
          denominator == 0 ? 0.0 : term.weight * term.sum.item<double>() / denominator;
    }
    flow = saved.out.flow;
    micro.saved.push_back(std::move(saved));
    for (Policy* policy : policies_)
      policy->after(action, run);
  }
}

void Executor::backward(const Action& action,
                        Micro& micro,
                        const StepInput& input,
                        const StepOutput& output) {
  std::vector<at::Tensor> flow_grads;
  for (int b = model_.num_blocks() - 1; b >= 0; --b) {
    const BlockRun run{b, action.micro, input.num_micros};
    for (Policy* policy : policies_)
      policy->before(action, run);
    Saved saved = std::move(micro.saved.back());
    micro.saved.pop_back();
    micro.context.block_name = model_.name(b);
    if (saved.again) {
      const at::AutoGradMode grad(true);
      saved.out = named(model_.name(b), "second forward", [&] {
        return model_.block(b).forward(std::move(saved.in), micro.batch, micro.context);
      });
    }
    flow_grads = named(model_.name(b), "backward", [&] {
      return backward_block(b, saved, flow_grads, output.denominators, input.loss_scale);
    });
    for (Policy* policy : policies_)
      policy->after(action, run);
  }
}

std::vector<at::Tensor> Executor::backward_block(int block,
                                                 Saved& saved,
                                                 const std::vector<at::Tensor>& flow_grads,
                                                 const std::vector<double>& denominators,
                                                 double loss_scale) {
  std::vector<at::Tensor> roots, root_grads;
  for (std::size_t i = 0; i < saved.out.flow.diff.size(); ++i) {
    // An output that nobody used, or that does not depend on anything trainable, has no gradient to
    // pass on.
    if (i >= flow_grads.size() || !flow_grads[i].defined() ||
        !saved.out.flow.diff[i].requires_grad())
      continue;
    roots.push_back(saved.out.flow.diff[i]);
    root_grads.push_back(flow_grads[i]);
  }
  for (const nn::Term& term : saved.out.terms) {
    const double denominator = denominators.at(static_cast<std::size_t>(term.denominator));
    if (!term.sum.requires_grad()) continue;
    roots.push_back(term.sum);
    root_grads.push_back(
        at::full_like(term.sum, denominator == 0 ? 0.0 : term.weight / denominator * loss_scale));
  }
  std::vector<at::Tensor> inputs = saved.inputs;
  std::vector<Param*> params;
  for (const auto& param : model_.params(block)) {
    if (!param->info().trainable) continue;
    params.push_back(param.get());
    inputs.push_back(param->tensor());
  }
  if (roots.empty() || inputs.empty()) return std::vector<at::Tensor>(saved.inputs.size());
  std::vector<at::Tensor> grads = torch::autograd::grad(roots,
                                                        inputs,
                                                        root_grads,
                                                        /*retain_graph=*/std::nullopt,
                                                        /*create_graph=*/false,
                                                        /*allow_unused=*/true);
  for (std::size_t p = 0; p < params.size(); ++p) {
    // Undefined and written: done by an own autograd function. Undefined and not written: zero, by
    // the sink's close().
    const at::Tensor& grad = grads[saved.inputs.size() + p];
    if (grad.defined()) params[p]->grad().write(grad);
  }
  grads.resize(saved.inputs.size());
  return grads;
}

void Executor::infer_nothing() {
  const Action action{.kind = Do::Forward};
  for (Policy* policy : policies_)
    policy->begin({&action, 1});
  skip(action, 1);
  for (Policy* policy : policies_)
    policy->end();
}

nn::Outcome Executor::infer(const nn::Batch& batch, nn::StepContext& context) {
  const at::AutoGradMode grad(false);
  context.batch = &batch;
  context.tensor = model_.tensor_parallel();
  nn::Flow flow;
  nn::Outcome out;
  const Action action{.kind = Do::Forward};
  for (Policy* policy : policies_)
    policy->begin({&action, 1});
  for (int b = 0; b < model_.num_blocks(); ++b) {
    const BlockRun run{b, 0, 1};
    for (Policy* policy : policies_)
      policy->before(action, run);
    context.block_name = model_.name(b);
    out = named(model_.name(b), "forward", [&] {
      return model_.block(b).forward(std::move(flow), batch, context);
    });
    flow = out.flow;
    for (Policy* policy : policies_)
      policy->after(action, run);
  }
  for (Policy* policy : policies_)
    policy->end();
  return out;
}

}  // namespace tessera::parallel
