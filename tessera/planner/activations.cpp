// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/activations.h"

#include <algorithm>
#include <exception>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/tensor/dtype.h"

namespace tessera::planner {
namespace {

// Margin for small tensors of a step and for the deviation of the probe; a prediction should never
// be below the need.
constexpr double kMargin = 1.05;

parallel::ProbedModel probed(const Plan& plan, std::int64_t samples) {
  const parallel::TensorOptions::Grid& grid = plan.layout().grid;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  parallel::ProbedModel out;
  out.model = plan.model().resolved.model;
  out.mesh = mesh::Mesh({.cp = plan.layout().context,
                         .tp_depth = of(grid.depth),
                         .tp_row = of(grid.row),
                         .tp_col = of(grid.col)});
  out.weights = plan.layout().weight_options(plan.model().rules);
  out.threads = plan.layout().threads;
  for (const data::TensorSpec& spec : plan.data().sample) {
    std::vector<std::int64_t> shape = {samples};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    out.batch.set(
        spec.name,
        at::empty(shape, at::TensorOptions().dtype(to_torch(spec.dtype)).device(at::kMeta)));
  }
  for (std::int64_t i = 0; i < samples; ++i)
    out.batch.sample_ids.push_back(i);
  return out;
}

// Bytes of the tensors of a micro-batch.
std::int64_t batch_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const data::TensorSpec& spec : plan.data().sample)
    bytes += static_cast<std::int64_t>(spec.bytes());
  return plan.layout().micro_batch * bytes;
}

// Everything besides the model on which a block's need depends.
std::string key_of(const Plan& plan, std::int64_t samples) {
  const parallel::TensorOptions::Grid& grid = plan.layout().grid;
  std::string out = fmt::format("{} {} {} {}x{}x{} {} {} {} {}",
                                samples,
                                plan.layout().threads,
                                static_cast<int>(plan.layout().working),
                                grid.depth,
                                grid.row,
                                grid.col,
                                static_cast<int>(plan.layout().tensor_mode()),
                                plan.layout().sequence,
                                plan.layout().context,
                                static_cast<int>(plan.layout().context_mode));
  for (const data::TensorSpec& spec : plan.data().sample) {
    out += ' ';
    for (const std::int64_t size : spec.shape)
      out += fmt::format("{},", size);
  }
  return out;
}

std::vector<parallel::Action> actions_of(const Plan& plan, int stage) {
  const parallel::StageLayout& layout = plan.layout().stages;
  const auto micros = static_cast<int>(std::max<std::int64_t>(plan.layout().accumulation, 1));
  if (layout.stages == 1) return parallel::accumulation_schedule(micros);
  return parallel::pipeline_actions(
      plan.layout().pipeline_schedule(), {layout.stages, layout.chunks, micros}, stage);
}

bool splits_backward(const std::vector<parallel::Action>& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const parallel::Action& action) {
    return action.kind == parallel::ActionKind::BackwardInputs;
  });
}

bool runs_again(const Plan& plan, std::size_t block) {
  return block < plan.layout().recompute.blocks.size() && plan.layout().recompute.blocks[block];
}

}  // namespace

const std::vector<parallel::BlockBytes>& ProbeCache::training(const Plan& plan,
                                                              bool recompute,
                                                              bool split) {
  const std::string key = fmt::format("{} {} {} {}",
                                      key_of(plan, plan.layout().micro_batch),
                                      recompute,
                                      plan.layout().recompute.regions,
                                      split);
  const std::scoped_lock lock(mutex_);
  const auto found = training_.find(key);
  if (found != training_.end()) return found->second;
  return training_
      .emplace(key,
               parallel::probe_training(probed(plan, plan.layout().micro_batch),
                                        recompute,
                                        plan.layout().recompute.regions,
                                        split))
      .first->second;
}

std::int64_t ProbeCache::evaluation(const Plan& plan) {
  const std::int64_t samples = plan.run().eval.micro_batch;
  const std::string key = key_of(plan, samples);
  const std::scoped_lock lock(mutex_);
  const auto found = evaluation_.find(key);
  if (found != evaluation_.end()) return found->second;
  return evaluation_.emplace(key, parallel::probe_inference(probed(plan, samples))).first->second;
}

Probes::Probes() : cache_(std::make_shared<ProbeCache>()) {}

Probes& Probes::operator=(const Probes& other) {
  if (this != &other) cache_ = std::make_shared<ProbeCache>();
  return *this;
}

std::vector<parallel::BlockWork> predict_work(const Plan& plan) {
  TESSERA_ASSERT(!plan.data().sample.empty());
  const bool split = splits_backward(actions_of(plan, /*stage=*/0));
  const parallel::ProbedModel model = probed(plan, plan.layout().micro_batch);
  std::map<bool, std::vector<parallel::BlockWork>> known;  // by whether blocks run again
  std::vector<parallel::BlockWork> out;
  for (std::size_t b = 0; b < plan.model().resolved.model.blocks.size(); ++b) {
    std::vector<parallel::BlockWork>& work = known[runs_again(plan, b)];
    if (work.empty())
      work =
          parallel::probe_work(model, runs_again(plan, b), plan.layout().recompute.regions, split);
    out.push_back(work[b]);
  }
  return out;
}

Activations predict_activations(const Plan& plan, int stage) {
  Activations out;
  if (plan.data().sample.empty()) {
    out.unknown = "the tensors of a sample are known once the data is open";
    return out;
  }
  const std::vector<parallel::Action> actions = actions_of(plan, stage);
  const bool split = splits_backward(actions);
  const std::size_t count = plan.model().resolved.model.blocks.size();
  try {
    std::vector<parallel::BlockBytes> blocks;
    for (std::size_t b = 0; b < count; ++b)
      blocks.push_back(plan.model().probes.cache().training(plan, runs_again(plan, b), split)[b]);
    const std::int64_t most =
        parallel::most_activations(actions, plan.layout().stages, stage, blocks, batch_bytes(plan));
    out.training = static_cast<std::int64_t>(kMargin * static_cast<double>(most));
    if (plan.run().eval.when().any() || !plan.data().options.test.empty()) {
      out.evaluation = static_cast<std::int64_t>(
          kMargin * static_cast<double>(plan.model().probes.cache().evaluation(plan)));
    }
  } catch (const Error& error) {
    out.unknown = error.what();
    if (exit_code(error.kind()) == exit_code(Error::Kind::Config))
      out.refused = std::current_exception();
  } catch (const std::exception& error) {
    // Only the first part of ATen's message is used; the rest is advice for its own users.
    const std::string_view what = error.what();
    out.unknown = what.substr(0, std::min(what.find(". You may"), what.find('\n')));
  }
  return out;
}

std::vector<std::string> evaluated_terms(const Plan& plan) {
  if (plan.data().sample.empty()) return {};
  try {
    return parallel::probe_terms(probed(plan, plan.run().eval.micro_batch));
  } catch (const std::exception&) {
    return {};  // predict_activations() says why
  }
}

void check_blocks(const Plan& plan) {
  if (const std::exception_ptr refused = predict_activations(plan, /*stage=*/0).refused)
    std::rethrow_exception(refused);
}

}  // namespace tessera::planner
