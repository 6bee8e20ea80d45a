// SPDX-License-Identifier: Apache-2.0
// The passes of the executor for micro-batches that have no samples on this rank, while other ranks
// have some: policies and blocks take part in the collectives.
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/parallel/block_errors.h"
#include "tessera/parallel/executor.h"

namespace tessera::parallel {

void Executor::idle(const Action& action,
                    Micro& micro,
                    const StepInput& input,
                    StepOutput& output) {
  if (!is_pass(action.kind)) return;
  if (action.kind == ActionKind::BackwardWeights)
    return backward_weights(action, micro, input.num_micros);
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  const bool forward = action.kind == ActionKind::Forward;
  const auto [first, last] = model_.blocks_of(action.chunk);
  for (int i = 0; i < last - first; ++i) {
    const int b = forward ? first + i : last - 1 - i;
    run_block(action, {b, action.micro, input.num_micros}, [&] {
      if (forward) {
        idle_forward(b, micro, pass);
      } else {
        idle_backward(b, action, micro, input, output);
      }
    });
  }
}

void Executor::idle_forward(int block, Micro& micro, Pass& pass) {
  if (!model_.block(block).exchanges()) return;
  const at::AutoGradMode grad(!runs_again(block));
  micro.context.block_name = model_.name(block);
  Saved saved;
  saved.again = runs_again(block);
  saved.out = in_block(model_.name(block), "forward", saved.inputs, [&] {
    return model_.block(block).idle(saved.inputs, micro.context);
  });
  pass.saved.push_back(std::move(saved));
}

void Executor::idle_backward(
    int block, const Action& action, Micro& micro, const StepInput& input, StepOutput& output) {
  Pass& pass = micro.passes[static_cast<std::size_t>(action.chunk)];
  const bool inputs_only = action.kind == ActionKind::BackwardInputs;
  PutOff put_off{block, {}, {}};
  if (model_.block(block).exchanges()) {
    Saved saved = std::move(pass.saved.back());
    pass.saved.pop_back();
    micro.context.block_name = model_.name(block);
    if (saved.again) {
      const at::AutoGradMode grad(true);
      saved.inputs.clear();
      saved.out = in_block(model_.name(block), "second forward", [&] {
        return model_.block(block).idle(saved.inputs, micro.context);
      });
    }
    std::vector<at::Tensor> no_rows;
    for (const at::Tensor& out : saved.out.flow.diff)
      no_rows.push_back(at::zeros_like(out));
    micro.context.set_deferring(inputs_only);
    const BackwardOf of{block, input.loss_scale, inputs_only ? &put_off : nullptr};
    backward_block(of, saved, no_rows, output.denominators);
    if (inputs_only) put_off.work = micro.context.take_deferred();
  }
  if (inputs_only) pass.put_off.push_back(std::move(put_off));
}

void Executor::infer_nothing() {
  const at::AutoGradMode grad(false);
  const nn::Batch none;
  nn::StepContext context(nn::Mode::Eval, 0);
  context.batch = &none;
  share_layers(context);
  const std::vector<Action> actions = infer_actions();
  begin(actions);
  for (const Action& action : actions) {
    if (!is_pass(action.kind)) continue;
    const auto [first, last] = model_.blocks_of(action.chunk);
    for (int b = first; b < last; ++b) {
      run_block(action, {b, action.micro, 1}, [&] {
        if (!model_.block(b).exchanges()) return;
        context.block_name = model_.name(b);
        std::vector<at::Tensor> inputs;
        in_block(model_.name(b), "forward", [&] { return model_.block(b).idle(inputs, context); });
      });
    }
  }
  end();
}

}  // namespace tessera::parallel
