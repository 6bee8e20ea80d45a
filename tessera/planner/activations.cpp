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
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/planner/train_config.h"
#include "tessera/tensor/dtype.h"

namespace tessera::planner {
namespace {

// Margin for small tensors of a step and for the deviation of the probe; a prediction should never
// be below the need.
constexpr double kMargin = 1.05;

parallel::ProbedModel probed(const Plan& plan, std::int64_t samples) {
  const parallel::TensorOptions::Grid& grid = plan.grid;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  parallel::ProbedModel out;
  out.model = plan.model.model;
  out.mesh = mesh::Mesh({.cp = plan.context,
                         .tp_depth = of(grid.depth),
                         .tp_row = of(grid.row),
                         .tp_col = of(grid.col)});
  out.weights = plan.weight_options();
  out.threads = plan.threads;
  for (const data::TensorSpec& spec : plan.sample) {
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
  for (const data::TensorSpec& spec : plan.sample)
    bytes += static_cast<std::int64_t>(spec.bytes());
  return plan.micro_batch * bytes;
}

// Everything besides the model on which a block's need depends.
std::string key_of(const Plan& plan, std::int64_t samples) {
  const parallel::TensorOptions::Grid& grid = plan.grid;
  std::string out = fmt::format("{} {} {} {}x{}x{} {} {} {} {}",
                                samples,
                                plan.threads,
                                static_cast<int>(plan.working),
                                grid.depth,
                                grid.row,
                                grid.col,
                                static_cast<int>(plan.tensor),
                                plan.sequence,
                                plan.context,
                                static_cast<int>(plan.context_mode));
  for (const data::TensorSpec& spec : plan.sample) {
    out += ' ';
    for (const std::int64_t size : spec.shape)
      out += fmt::format("{},", size);
  }
  return out;
}

std::vector<parallel::Action> actions_of(const Plan& plan, int stage) {
  const parallel::StageLayout& layout = plan.stages;
  const auto micros = static_cast<int>(std::max<std::int64_t>(plan.accumulation, 1));
  if (layout.stages == 1) return parallel::accumulation_schedule(micros);
  return parallel::pipeline_actions(plan.schedule, {layout.stages, layout.chunks, micros}, stage);
}

bool splits_backward(const std::vector<parallel::Action>& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const parallel::Action& action) {
    return action.kind == parallel::ActionKind::BackwardInputs;
  });
}

bool runs_again(const Plan& plan, std::size_t block) {
  return block < plan.recompute.blocks.size() && plan.recompute.blocks[block];
}

}  // namespace

const std::vector<parallel::BlockBytes>& ProbeCache::training(const Plan& plan,
                                                              bool recompute,
                                                              bool split) {
  const std::string key = fmt::format(
      "{} {} {} {}", key_of(plan, plan.micro_batch), recompute, plan.recompute.regions, split);
  const std::scoped_lock lock(mutex_);
  const auto found = training_.find(key);
  if (found != training_.end()) return found->second;
  return training_
      .emplace(key,
               parallel::probe_training(
                   probed(plan, plan.micro_batch), recompute, plan.recompute.regions, split))
      .first->second;
}

std::int64_t ProbeCache::evaluation(const Plan& plan) {
  const std::int64_t samples = plan.config.eval.micro_batch;
  const std::string key = key_of(plan, samples);
  const std::scoped_lock lock(mutex_);
  const auto found = evaluation_.find(key);
  if (found != evaluation_.end()) return found->second;
  return evaluation_.emplace(key, parallel::probe_inference(probed(plan, samples))).first->second;
}

std::shared_ptr<ProbeCache> make_probe_cache() {
  return std::make_shared<ProbeCache>();
}

std::vector<parallel::BlockWork> predict_work(const Plan& plan) {
  TESSERA_ASSERT(!plan.sample.empty());
  const bool split = splits_backward(actions_of(plan, /*stage=*/0));
  const parallel::ProbedModel model = probed(plan, plan.micro_batch);
  std::map<bool, std::vector<parallel::BlockWork>> known;  // by whether blocks run again
  std::vector<parallel::BlockWork> out;
  for (std::size_t b = 0; b < plan.model.model.blocks.size(); ++b) {
    std::vector<parallel::BlockWork>& work = known[runs_again(plan, b)];
    if (work.empty())
      work = parallel::probe_work(model, runs_again(plan, b), plan.recompute.regions, split);
    out.push_back(work[b]);
  }
  return out;
}

Activations predict_activations(const Plan& plan, int stage) {
  Activations out;
  if (plan.sample.empty()) {
    out.unknown = "the tensors of a sample are known once the data is open";
    return out;
  }
  const std::vector<parallel::Action> actions = actions_of(plan, stage);
  const bool split = splits_backward(actions);
  const std::size_t count = plan.model.model.blocks.size();
  try {
    std::vector<parallel::BlockBytes> blocks;
    for (std::size_t b = 0; b < count; ++b)
      blocks.push_back(plan.probes->training(plan, runs_again(plan, b), split)[b]);
    const std::int64_t most =
        parallel::most_activations(actions, plan.stages, stage, blocks, batch_bytes(plan));
    out.training = static_cast<std::int64_t>(kMargin * static_cast<double>(most));
    if (plan.config.eval.when().any() || !plan.config.data.test.empty()) {
      out.evaluation =
          static_cast<std::int64_t>(kMargin * static_cast<double>(plan.probes->evaluation(plan)));
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
  if (plan.sample.empty()) return {};
  try {
    return parallel::probe_terms(probed(plan, plan.config.eval.micro_batch));
  } catch (const std::exception&) {
    return {};  // predict_activations() says why
  }
}

void check_blocks(const Plan& plan) {
  if (const std::exception_ptr refused = predict_activations(plan, /*stage=*/0).refused)
    std::rethrow_exception(refused);
}

}  // namespace tessera::planner
