// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/profile.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"
#include "tessera/memory/ledger.h"
#include "tessera/models/family.h"
#include "tessera/nn/step_context.h"
#include "tessera/parallel/block_errors.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/partition.h"
#include "tessera/parallel/pipeline/placement.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/init.h"

namespace tessera::engine {
namespace {

/// A block with its own weights.
struct BlockBench {
  std::unique_ptr<nn::Block> block;
  std::vector<std::shared_ptr<Param>> params;

  BlockBench(const nn::BlockSpec& spec, DType working, std::uint64_t seed) {
    nn::Params declared(spec.name);
    block = nn::make_block(spec, declared);
    params = declared.list();
    const c10::NoGradGuard no_grad;
    for (const auto& param : params) {
      const ParamInfo& info = param->info();
      const at::Tensor values = at::zeros(info.shape, at::kFloat);
      initialize_range(info, seed, 0, values.view({-1}));
      param->attach(values.to(to_torch(working)).requires_grad_(info.trainable));
    }
  }
};

std::int64_t kept_bytes() {
  return memory::current_ledger().usage().total;
}

/// Runs forward and backward once; `flow` is the block's input, `next` its output.
BlockCost run_once(BlockBench& bench,
                   const nn::Flow& flow,
                   const nn::Batch& batch,
                   nn::StepContext& context,
                   nn::Flow& next) {
  nn::Flow in = flow;
  std::vector<at::Tensor> inputs;
  for (at::Tensor& tensor : in.diff) {
    tensor = tensor.detach().requires_grad_(true);
    inputs.push_back(tensor);
  }
  for (const auto& param : bench.params) {
    if (!param->info().trainable) continue;
    param->grad().open(at::empty(param->info().shape, at::kFloat));
    inputs.push_back(param->tensor());
  }
  const std::int64_t before = kept_bytes();
  const double start = now_s();
  nn::Outcome out = bench.block->forward(std::move(in), batch, context);
  const double between = now_s();
  BlockCost cost{.seconds = between - start,
                 .bytes = std::max<std::int64_t>(0, kept_bytes() - before)};
  next = nn::Flow{};
  next.fixed = out.flow.fixed;
  next.spec = out.flow.spec;
  std::vector<at::Tensor> roots, root_grads;
  const auto add_root = [&](const at::Tensor& root) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    root_grads.push_back(at::full_like(root, 1e-3));
  };
  for (const at::Tensor& tensor : out.flow.diff) {
    next.diff.push_back(tensor.detach());
    add_root(tensor);
  }
  for (const nn::Term& term : out.terms)
    add_root(term.sum);
  if (roots.empty() || inputs.empty()) return cost;
  const double backward = now_s();
  static_cast<void>(torch::autograd::grad(roots,
                                          inputs,
                                          root_grads,
                                          /*retain_graph=*/std::nullopt,
                                          /*create_graph=*/false,
                                          /*allow_unused=*/true));
  cost.seconds += now_s() - backward;
  return cost;
}

/// Bytes on this rank for each parameter of its stage, as the plan predicts them.
double bytes_a_parameter(const planner::Plan& plan,
                         const planner::MemoryEstimate& need,
                         const std::vector<double>& elements) {
  double most = 1;
  for (int stage = 0; stage < plan.layout().stages.stages; ++stage) {
    double held = 0;
    for (std::size_t b = 0; b < elements.size(); ++b)
      held += plan.layout().stages.stage_of_block(static_cast<int>(b)) == stage ? elements[b] : 0.0;
    most = std::max(most, held);
  }
  return static_cast<double>(need.parameters + need.gradients + need.optimizer) / most;
}

std::vector<double> elements_of(const nn::Model& model) {
  std::vector<double> out;
  for (const nn::BlockSpec& spec : model.blocks) {
    double count = 0;
    for (const auto& info : nn::declared_by(spec))
      count += static_cast<double>(info->numel());
    out.push_back(count);
  }
  return out;
}

}  // namespace

std::vector<BlockCost> measure_blocks(const nn::Model& model,
                                      DType working,
                                      std::uint64_t seed,
                                      const nn::Batch& batch,
                                      const std::function<void()>& after_each) {
  constexpr int kRuns = 3;
  std::vector<BlockCost> out;
  nn::Flow flow;
  for (const nn::BlockSpec& spec : model.blocks) {
    BlockBench bench(spec, working, seed);
    nn::StepContext context(nn::Mode::Train, seed);
    context.batch = &batch;
    context.block_name = spec.name;
    BlockCost best{.seconds = std::numeric_limits<double>::infinity()};
    nn::Flow next;
    for (int run = 0; run < kRuns; ++run) {
      const at::AutoGradMode grad(true);
      const BlockCost cost = parallel::in_block(
          spec.name, "measured run", [&] { return run_once(bench, flow, batch, context, next); });
      best.seconds = std::min(best.seconds, cost.seconds);
      best.bytes = cost.bytes;  // the first run also fills caches
      after_each();
    }
    out.push_back(best);
    flow = std::move(next);
  }
  return out;
}

std::vector<int> bounds_by_cost(const planner::Plan& plan,
                                const planner::MemoryEstimate& need,
                                const std::vector<BlockCost>& costs,
                                std::uint64_t available) {
  const parallel::StageLayout& layout = plan.layout().stages;
  const parallel::PipelineSize size{
      layout.stages, layout.chunks, static_cast<int>(plan.layout().accumulation)};
  const auto stages =
      parallel::simulate(parallel::all_actions(plan.layout().pipeline_schedule(), size),
                         size,
                         layout.placement,
                         parallel::PassTimes())
          .stages;
  const std::vector<double> elements = elements_of(planner::model_of(plan).model);
  const double of_parameter = bytes_a_parameter(plan, need, elements);
  const double room = planner::kUsableMemory * static_cast<double>(available) / plan.ranks() -
                      static_cast<double>(need.other);
  // Several chunks share the memory of their stage.
  const auto fits = [&](int part, int first, int last) {
    const auto& stage = stages[static_cast<std::size_t>(layout.stage_of_part(part))];
    double held = 0;
    for (int b = first; b < last; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const auto kept = static_cast<double>(costs[i].bytes) * stage.most_kept;
      held += elements[i] * of_parameter + kept / layout.chunks;
    }
    return held <= room / layout.chunks;
  };
  std::vector<double> seconds;
  for (const BlockCost& cost : costs)
    seconds.push_back(cost.seconds);
  return parallel::balanced_bounds(seconds, layout.parts(), fits);
}

planner::PlanWithData with_measured_stages(const planner::PlanWithData& plan,
                                           const planner::MemoryEstimate& need,
                                           comm::World& world,
                                           const data::Dataset& data,
                                           std::uint64_t available) {
  if (!plan.layout().measures_blocks()) return plan;
  const std::size_t blocks = planner::model_of(plan).model.blocks.size();
  std::vector<double> shared(2 * blocks + 1, 0.0);
  if (world.rank() == 0) {
    std::vector<std::int64_t> samples;
    for (std::int64_t i = 0; i < std::min(plan.layout().micro_batch, data.size()); ++i)
      samples.push_back(i);
    const std::vector<BlockCost> measured =
        measure_blocks(planner::model_of(plan).model,
                       plan.layout().working,
                       static_cast<std::uint64_t>(planner::seed_of(plan)),
                       make_batch(data, samples, samples),
                       [&] { world.show_life(); });
    for (std::size_t b = 0; b < blocks; ++b) {
      shared[b] = measured[b].seconds;
      shared[blocks + b] = static_cast<double>(measured[b].bytes);
    }
    shared.back() = static_cast<double>(available);
  }
  // Sums with zeros, which distributes what the first rank measured, and its available memory.
  shared = world.all_reduce(
      world.everyone(), std::move(shared), comm::Op::Sum, TESSERA_HERE("what the blocks cost"));
  std::vector<BlockCost> costs(blocks);
  for (std::size_t b = 0; b < blocks; ++b)
    costs[b] = {.seconds = shared[b], .bytes = static_cast<std::int64_t>(shared[blocks + b])};
  const auto free = static_cast<std::uint64_t>(shared.back());
  parallel::Layout layout = plan.layout();
  layout.stages.bounds = bounds_by_cost(plan, need, costs, free);
  TESSERA_REQUIRE(
      !layout.stages.bounds.empty(),
      Memory,
      fmt::format("no cut of {} blocks into {} parts fits into 95 % of the {} that are free",
                  blocks,
                  layout.stages.parts(),
                  text::bytes(free)),
      "use more stages, a smaller micro-batch, or activation_checkpointing");
  return planner::with(plan, std::move(layout));
}

}  // namespace tessera::engine
