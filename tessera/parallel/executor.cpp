// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/executor.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/nn/denominators.h"
#include "tessera/parallel/block_errors.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

/// Adds the time until its destruction to `seconds`.
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

/// The inputs of a block, detached from the previous block: the executor passes gradients across
/// this boundary itself.
nn::Flow detached(const nn::Flow& flow, std::vector<at::Tensor>& inputs) {
  nn::Flow out = flow;
  for (at::Tensor& tensor : out.diff) {
    tensor = tensor.detach();
    tensor.set_requires_grad(true);
    inputs.push_back(tensor);
  }
  return out;
}

/// The denominator that divides a loss term of the block.
double divisor_of(const nn::Term& term,
                  const std::vector<double>& denominators,
                  const std::string& block) {
  const std::size_t index = nn::denominator_index(term.denominator, denominators.size());
  TESSERA_REQUIRE(
      index < denominators.size(),
      Shape,
      fmt::format("block {}: the term \"{}\" of the loss is divided by denominator {}, and the "
                  "objective's denominators() gives {}",
                  block,
                  term.name,
                  term.denominator,
                  denominators.size()),
      "let denominators() return a number for each that Term::denominator counts, from 0 on");
  return denominators[index];
}

/// The existing values of a block's term, or `count` zeros inserted in their place.
std::vector<double>& values_of(std::vector<TermValues>& all,
                               int block,
                               const nn::Term& term,
                               std::size_t count) {
  auto at = all.begin();
  for (; at != all.end() && at->block <= block; ++at) {
    if (at->block == block && at->name == term.name) return at->values;
  }
  at = all.insert(at,
                  {.block = block,
                   .name = term.name,
                   .denominator = term.denominator,
                   .weight = term.weight,
                   .values = std::vector<double>(count, 0.0)});
  return at->values;
}

std::vector<at::Tensor> shapes_only(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors)
    out.push_back(at::empty(tensor.sizes(), tensor.options().device(at::kMeta)));
  return out;
}

}  // namespace

std::vector<double> StepOutput::losses(int num_micros) const {
  std::vector<double> out(static_cast<std::size_t>(num_micros), 0.0);
  const std::size_t blocks = block_losses.size() / out.size();
  for (std::size_t i = 0; i < block_losses.size(); ++i)
    out[i / blocks] += block_losses[i];
  return out;
}

namespace {

std::string_view pass_name(ActionKind kind) {
  if (kind == ActionKind::Forward) return "forward";
  return kind == ActionKind::BackwardWeights ? "backward of weights" : "backward";
}

}  // namespace

void Executor::run_block(const Action& action,
                         const BlockRun& run,
                         const std::function<void()>& fn) {
  const trace::Scope scope(trace::Kind::Block, pass_name(action.kind), model_.name(run.block));
  for (Policy* policy : policies_)
    policy->before(action, run);
  fn();
  for (Policy* policy : policies_)
    policy->after(action, run);
}

void Executor::begin(const std::vector<Action>& actions) {
  for (Policy* policy : policies_)
    policy->begin(actions);
}

void Executor::end() {
  for (Policy* policy : policies_)
    policy->end();
}

StepOutput Executor::train(const std::vector<Action>& actions, const StepInput& input) {
  posted_losses_.clear();  // left by a step that ended with an error
  uploads_.clear();
  StepOutput output;
  output.block_losses.assign(
      static_cast<std::size_t>(input.num_micros) * static_cast<std::size_t>(model_.num_blocks()),
      0.0);
  Micros micros(static_cast<std::size_t>(input.num_micros));
  std::vector<std::size_t> left(micros.size(), 0);  // remaining actions of each micro-batch
  for (const Action& action : actions)
    ++left[static_cast<std::size_t>(action.micro)];
  std::vector<std::vector<double>> denominators;
  begin(actions);
  std::size_t posted = 0;  // number of receives among the preceding actions
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const auto m = static_cast<std::size_t>(action.micro);
    auto& slot = micros[m];
    if (is_pass(action.kind)) {
      const Timed timed(action.kind == ActionKind::Forward ? times_.forward : times_.backward);
      posted = post_ahead(actions, std::max(posted, i + 1), micros);
    }
    if (action.kind == ActionKind::Load) {
      const Timed timed(times_.data);
      const trace::Scope scope(trace::Kind::Phase, "data");
      load(slot, action.micro, input);
      add_denominators(slot->batch, denominators);
      upload_next(actions, i + 1, micros);
      if (static_cast<int>(denominators.size()) == input.num_micros) {
        output.denominators = input.global_denominators(denominators);
      }
    } else {
      if (!std::exchange(slot->there, true)) {
        slot->batch = uploads_.take(action.micro, slot->batch);
        upload_next(actions, i + 1, micros);
      }
      if (slot->batch.size() == 0) {
        idle(action, *slot, input, output);
      } else {
        act(action, *slot, input, output);
      }
    }
    if (--left[m] == 0) slot.reset();
  }
  end();
  settle_losses(input.num_micros, output);
  return output;
}

/// Posts the receives of the next pass from `from` on, as far as their shapes are known, in the
/// order of the list, because the messages of a part arrive in that order. Returns the first action
/// that was not handled.
std::size_t Executor::post_ahead(const std::vector<Action>& actions,
                                 std::size_t from,
                                 Micros& micros) {
  for (; from < actions.size(); ++from) {
    const Action& action = actions[from];
    const bool gradient = action.kind == ActionKind::ReceiveGradient;
    if (is_pass(action.kind) || action.kind == ActionKind::Load) break;
    if (!gradient && action.kind != ActionKind::ReceiveFlow) continue;
    auto& slot = micros[static_cast<std::size_t>(action.micro)];
    if (!slot) break;
    if (slot->batch.size() == 0) continue;
    if (gradient && !slot->passes[static_cast<std::size_t>(action.chunk)].ran) break;
    post(action, *slot);
  }
  return from;
}

void Executor::post(const Action& action, Micro& micro) {
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  const int part = part_of(action);
  if (action.kind == ActionKind::ReceiveFlow) {
    pass.flow_coming = link_->post_flow(part, micro.batch, micro.context);
  } else {
    pass.grads_coming = link_->post_gradient(part + 1, pass.like);
  }
}

void Executor::act(const Action& action, Micro& micro, const StepInput& input, StepOutput& output) {
  const bool on_the_way_there = action.kind == ActionKind::Forward ||
                                action.kind == ActionKind::ReceiveFlow ||
                                action.kind == ActionKind::SendFlow;
  const Timed timed(on_the_way_there ? times_.forward : times_.backward);
  std::optional<Timed> receiving;
  if (action.kind == ActionKind::ReceiveFlow || action.kind == ActionKind::ReceiveGradient)
    receiving.emplace(times_.receive);
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  const int part = part_of(action);
  switch (action.kind) {
    case ActionKind::Load:
      return;
    case ActionKind::ReceiveFlow:
      if (!pass.flow_coming) post(action, micro);
      pass.flow = link_->take_flow(std::move(*pass.flow_coming));
      pass.flow_coming.reset();
      return;
    case ActionKind::Forward:
      return forward(action, micro, input, output);
    case ActionKind::SendFlow:
      link_->send_flow(part + 1, pass.flow);
      pass.flow = {};
      return;
    case ActionKind::ReceiveGradient:
      if (!pass.grads_coming) post(action, micro);
      pass.grads = link_->take_gradient(std::move(*pass.grads_coming));
      pass.grads_coming.reset();
      return;
    case ActionKind::Backward:
    case ActionKind::BackwardInputs:
      return backward(action, micro, input, output);
    case ActionKind::SendGradient:
      link_->send_gradient(part, pass.grads, pass.first);
      pass.grads.clear();
      return;
    case ActionKind::BackwardWeights:
      return backward_weights(action, micro, input.num_micros);
  }
}

bool Executor::runs_again(int block) const {
  const auto b = static_cast<std::size_t>(block);
  return !is_objective(block) && b < recompute_.blocks.size() && recompute_.blocks[b];
}

/// The micro-batch in the chunk of another part, if that part is on this stage too.
Executor::Pass* Executor::neighbour(Micro& micro, int part) {
  const StageLayout& layout = model_.layout();
  if (part < 0 || part >= layout.parts() || layout.stage_of_part(part) != model_.stage())
    return nullptr;
  return &micro.passes[static_cast<std::size_t>(layout.chunk_of_part(part))];
}

void Executor::forward(const Action& action,
                       Micro& micro,
                       const StepInput& input,
                       StepOutput& output) {
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  nn::Flow flow = std::move(pass.flow);
  pass.first = shapes_only(flow.diff);
  const auto [first, last] = model_.blocks_of(action.chunk);
  for (int b = first; b < last; ++b) {
    const at::AutoGradMode grad(!runs_again(b));
    const BlockRun run{b, action.micro, input.num_micros};
    run_block(action, run, [&] {
      micro.context.block_name = model_.name(b);
      Saved saved;
      nn::Flow in = detached(flow, saved.inputs);
      saved.again = runs_again(b);
      if (saved.again || is_objective(b)) saved.in = in;
      if (!is_objective(b)) {
        saved.out = in_block(model_.name(b), "forward", saved.inputs, [&] {
          return model_.block(b).forward(std::move(in), micro.batch, micro.context);
        });
        check_outcome(model_.name(b), saved.out);
        add_losses(run, saved.out, output);
      }
      flow = saved.out.flow;
      if (store_ != nullptr && saved.again && (b == first || runs_again(b - 1))) {
        store_input(saved);
        saved.out = {};  // its flow is the input of the next block, which rests too
      }
      pass.saved.push_back(std::move(saved));
    });
  }
  pass.like = shapes_only(flow.diff);
  pass.ran = true;
  Pass* const next = neighbour(micro, part_of(action) + 1);
  (next != nullptr ? next->flow : pass.flow) = std::move(flow);
}

void Executor::add_losses(const BlockRun& run, const nn::Outcome& out, const StepOutput& output) {
  for (const nn::Term& term : out.terms) {
    const double denominator = divisor_of(term, output.denominators, model_.name(run.block));
    if (term.sum.is_meta()) continue;  // only shapes are needed then (activation_probe.h)
    nn::Term kept = term;
    kept.sum = term.sum.detach();
    posted_losses_.push_back({run.block, run.micro, std::move(kept), denominator});
  }
}

/// Sums of losses stay on the device during a step; the host reads them all at its end.
void Executor::settle_losses(int num_micros, StepOutput& output) {
  const std::vector<PostedLoss> posted = std::exchange(posted_losses_, {});
  if (posted.empty()) return;
  std::vector<at::Tensor> sums;
  for (const PostedLoss& one : posted)
    sums.push_back(one.term.sum.to(at::kDouble).reshape({1}));
  at::Tensor all = at::cat(sums);
  if (!all.is_cpu()) {
    const at::Tensor there =
        std::exchange(all, landing_room(all.numel(), at::kDouble, all.device()));
    all.copy_(there, /*non_blocking=*/true);
    wait_for_device(there.device());
  }
  const double* sum = all.const_data_ptr<double>();
  const auto blocks = static_cast<std::size_t>(model_.num_blocks());
  for (const PostedLoss& one : posted) {
    const auto micro = static_cast<std::size_t>(one.micro);
    const double value = one.denominator == 0 ? 0.0 : *sum / one.denominator;
    output.block_losses[micro * blocks + static_cast<std::size_t>(one.block)] +=
        one.denominator == 0 ? 0.0 : one.term.weight * *sum / one.denominator;
    values_of(output.terms, one.block, one.term, static_cast<std::size_t>(num_micros)).at(micro) +=
        value;
    ++sum;
  }
}

void Executor::backward(const Action& action,
                        Micro& micro,
                        const StepInput& input,
                        StepOutput& output) {
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  const bool inputs_only = action.kind == ActionKind::BackwardInputs;
  std::vector<at::Tensor> flow_grads = std::exchange(pass.grads, {});
  const auto [first, last] = model_.blocks_of(action.chunk);
  for (int b = last - 1; b >= first; --b) {
    const BlockRun run{b, action.micro, input.num_micros};
    run_block(action, run, [&] {
      Saved saved = std::move(pass.saved.back());
      pass.saved.pop_back();
      micro.context.block_name = model_.name(b);
      if (saved.again) {
        take_input(saved);
        if (!pass.saved.empty()) fetch_input(pass.saved.back());
        const at::AutoGradMode grad(true);
        saved.out = in_block(model_.name(b), "second forward", [&] {
          return model_.block(b).forward(std::move(saved.in), micro.batch, micro.context);
        });
      }
      PutOff put_off{b, {}, {}};
      micro.context.set_deferring(inputs_only);
      const BackwardOf of{b, input.loss_scale, inputs_only ? &put_off : nullptr};
      if (is_objective(b)) {
        flow_grads = run_objective(of, saved, micro, run, output);
      } else {
        flow_grads = backward_block(of, saved, flow_grads, output.denominators);
      }
      if (inputs_only) {
        put_off.work = micro.context.take_deferred();
        pass.put_off.push_back(std::move(put_off));
      }
    });
  }
  Pass* const before = neighbour(micro, part_of(action) - 1);
  (before != nullptr ? before->grads : pass.grads) = std::move(flow_grads);
}

/// Runs forward and backward of the objective, for a few samples at a time.
std::vector<at::Tensor> Executor::run_objective(
    const BackwardOf& of, Saved& saved, Micro& micro, const BlockRun& run, StepOutput& output) {
  const std::int64_t samples = micro.batch.size();
  std::int64_t step = model_.objective()->samples_at_once(micro.batch);
  // The ranks of a grid have shares of the samples but labels of all samples.
  if (step <= 0 || micro.context.splits_samples()) step = samples;
  if (step < samples) check_rows(model_.name(of.block), saved.in, samples);
  std::vector<at::Tensor> grads(saved.inputs.size());
  for (std::int64_t first = 0; first < samples; first += step) {
    const std::int64_t count = std::min(step, samples - first);
    const bool all = count == samples;
    const nn::Batch some = all ? nn::Batch() : micro.batch.samples(first, count);
    const nn::Batch& batch = all ? micro.batch : some;
    micro.context.batch = &batch;
    Saved part;
    nn::Flow in = saved.in;
    if (!all) {
      for (auto* tensors : {&in.diff, &in.fixed}) {
        for (at::Tensor& tensor : *tensors)
          tensor = tensor.narrow(0, first, count);
      }
    }
    in = detached(in, part.inputs);
    part.out = in_block(model_.name(of.block), "forward", part.inputs, [&] {
      const at::AutoGradMode grad(true);
      return model_.block(of.block).forward(std::move(in), batch, micro.context);
    });
    check_outcome(model_.name(of.block), part.out);
    TESSERA_REQUIRE(!part.out.terms.empty(),
                    Shape,
                    fmt::format("the objective {} returns no term of the loss in training",
                                model_.name(of.block)),
                    "put the sum that denominators() divides into Outcome::terms");
    add_losses(run, part.out, output);
    std::vector<at::Tensor> of_part = backward_block(of, part, {}, output.denominators);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (all || !of_part[i].defined()) {
        grads[i] = of_part[i];
        continue;
      }
      if (!grads[i].defined()) grads[i] = at::empty_like(saved.inputs[i]);
      grads[i].narrow(0, first, count).copy_(of_part[i]);
    }
  }
  micro.context.batch = &micro.batch;
  return grads;
}

void Executor::backward_weights(const Action& action, Micro& micro, int num_micros) {
  const at::AutoGradMode no_grad(false);  // as in backward
  for (PutOff& put_off :
       std::exchange(micro.passes[static_cast<std::size_t>(action.chunk)].put_off, {})) {
    const BlockRun run{put_off.block, action.micro, num_micros};
    run_block(action, run, [&] {
      in_block(model_.name(put_off.block), "weight gradients", [&] {
        for (const auto& work : put_off.work)
          work();
        for (const auto& [param, grad] : put_off.made)
          param->grad().write(grad);
      });
      put_off.work.clear();
      put_off.made.clear();
    });
  }
}

std::vector<at::Tensor> Executor::backward_block(const BackwardOf& of,
                                                 Saved& saved,
                                                 const std::vector<at::Tensor>& flow_grads,
                                                 const std::vector<double>& denominators) {
  std::vector<at::Tensor> roots, root_grads;
  for (std::size_t i = 0; i < saved.out.flow.diff.size(); ++i) {
    // An output that is unused, or that does not depend on trainable parameters, passes no gradient
    // on.
    if (i >= flow_grads.size() || !flow_grads[i].defined() ||
        !saved.out.flow.diff[i].requires_grad())
      continue;
    roots.push_back(saved.out.flow.diff[i]);
    root_grads.push_back(flow_grads[i]);
  }
  for (const nn::Term& term : saved.out.terms) {
    const double denominator = divisor_of(term, denominators, model_.name(of.block));
    if (!term.sum.requires_grad()) continue;
    roots.push_back(term.sum);
    // A number that layers can ask for without waiting for the device (host_values()).
    root_grads.push_back(
        on_device(at::full(term.sum.sizes(),
                           denominator == 0 ? 0.0 : term.weight / denominator * of.loss_scale,
                           at::dtype(term.sum.scalar_type())),
                  term.sum.device()));
  }
  std::vector<at::Tensor> inputs = saved.inputs;
  std::vector<Param*> params;
  for (const auto& param : model_.params(of.block)) {
    if (!param->info().trainable) continue;
    params.push_back(param.get());
    inputs.push_back(param->tensor());
  }
  if (roots.empty() || inputs.empty()) return std::vector<at::Tensor>(saved.inputs.size());
  std::vector<at::Tensor> grads = in_block(model_.name(of.block), "backward", [&] {
    return torch::autograd::grad(roots,
                                 inputs,
                                 root_grads,
                                 /*retain_graph=*/std::nullopt,
                                 /*create_graph=*/false,
                                 /*allow_unused=*/true);
  });
  for (std::size_t p = 0; p < params.size(); ++p) {
    // Undefined and written: a custom autograd function has written the gradient. Undefined and not
    // written: the sink's close() writes zero.
    const at::Tensor& grad = grads[saved.inputs.size() + p];
    if (!grad.defined()) continue;
    if (of.put_off != nullptr) {
      of.put_off->made.emplace_back(params[p], grad);
    } else {
      params[p]->grad().write(grad);
    }
  }
  grads.resize(saved.inputs.size());
  return grads;
}

void Executor::share_layers(nn::StepContext& context) const {
  context.tensor = model_.tensor_parallel();
  context.context_parallel = model_.context_parallel();
  context.experts = model_.expert_parallel();
}

std::vector<Action> Executor::infer_actions() const {
  const StageLayout& layout = model_.layout();
  return forward_actions(layout.placement, {layout.stages, layout.chunks, 1}, model_.stage());
}

nn::Outcome Executor::infer(const nn::Batch& given,
                            nn::StepContext& context,
                            std::vector<TermValues>* terms) {
  const nn::Batch moved = model_.device().is_cpu() ? nn::Batch() : given.on(model_.device());
  const nn::Batch& batch = model_.device().is_cpu() ? given : moved;
  const at::AutoGradMode grad(false);
  const at::AutoDispatchBelowADInplaceOrView views_without_history;
  context.batch = &batch;
  share_layers(context);
  nn::Flow flow;
  nn::Outcome out;
  const std::vector<Action> actions = infer_actions();
  begin(actions);
  std::optional<StageLink::Incoming> coming;
  const auto ask = [&](const Action& receive) {
    coming = link_->post_flow(part_of(receive), batch, context);
  };
  for (auto action_at = actions.begin(); action_at != actions.end(); ++action_at) {
    const Action& action = *action_at;
    if (action.kind == ActionKind::ReceiveFlow) {
      if (!coming) ask(action);
      flow = link_->take_flow(std::move(*coming));
      coming.reset();
    } else if (action.kind == ActionKind::SendFlow) {
      link_->send_flow(part_of(action) + 1, flow);
      flow = {};
    } else {
      const auto next = std::find_if(action_at + 1, actions.end(), [](const Action& other) {
        return other.kind != ActionKind::SendFlow;
      });
      if (next != actions.end() && next->kind == ActionKind::ReceiveFlow) ask(*next);
      infer_chunk(action, flow, out, batch, context, terms);
    }
  }
  end();
  return out;
}

/// Stores the objective's outcome in `out` and the flow after the chunk's last block in `flow`.
void Executor::infer_chunk(const Action& action,
                           nn::Flow& flow,
                           nn::Outcome& out,
                           const nn::Batch& batch,
                           nn::StepContext& context,
                           std::vector<TermValues>* terms) {
  const auto [first, last] = model_.blocks_of(action.chunk);
  for (int b = first; b < last; ++b) {
    const BlockRun run{b, 0, 1};
    run_block(action, run, [&] {
      context.block_name = model_.name(b);
      nn::Outcome outcome = in_block(model_.name(b), "forward", [&] {
        return model_.block(b).forward(std::move(flow), batch, context);
      });
      check_outcome(model_.name(b), outcome);
      flow = outcome.flow;
      if (terms != nullptr)
        for (const nn::Term& term : outcome.terms)
          values_of(*terms, b, term, 1).front() +=
              term.sum.is_meta() ? 0.0 : term.sum.item<double>();
      if (b + 1 == model_.num_blocks()) out = std::move(outcome);
    });
  }
}

}  // namespace tessera::parallel
