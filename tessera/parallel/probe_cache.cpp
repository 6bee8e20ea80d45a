// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/probe_cache.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

ProbedModel probed(const Probing& probing, std::int64_t samples) {
  const TensorOptions::Grid& grid = probing.layout.grid;
  const auto of = [](std::int64_t size) { return static_cast<int>(size); };
  ProbedModel out;
  out.model = probing.model;
  out.mesh = mesh::Mesh({.ep = probing.layout.expert_ranks,
                         .cp = probing.layout.context,
                         .tp_depth = of(grid.depth),
                         .tp_row = of(grid.row),
                         .tp_col = of(grid.col)});
  out.weights = probing.layout.weight_options(probing.rules);
  out.threads = probing.layout.threads;
  out.offloads = probing.layout.moves_activations();
  out.partitions = probing.layout.divides_activations();
  for (const data::TensorSpec& spec : probing.sample) {
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
std::int64_t batch_bytes(const Probing& probing) {
  std::int64_t bytes = 0;
  for (const data::TensorSpec& spec : probing.sample)
    bytes += static_cast<std::int64_t>(spec.bytes());
  return probing.layout.micro_batch * bytes;
}

// Everything besides the model on which a block's need depends.
std::string key_of(const Probing& probing, std::int64_t samples) {
  const TensorOptions::Grid& grid = probing.layout.grid;
  const mesh::ExpertFold experts = probing.layout.expert_fold();
  std::string out = fmt::format("{} {} {} {}x{}x{} {} {} {} {} {}:{}:{} {} {}",
                                samples,
                                probing.layout.threads,
                                static_cast<int>(probing.layout.working),
                                grid.depth,
                                grid.row,
                                grid.col,
                                static_cast<int>(probing.layout.tensor_mode()),
                                probing.layout.sequence,
                                probing.layout.context,
                                static_cast<int>(probing.layout.context_mode),
                                probing.layout.expert_ranks,
                                experts.ep.bits(),
                                experts.etp.bits(),
                                probing.layout.moves_activations(),
                                probing.layout.divides_activations());
  for (const data::TensorSpec& spec : probing.sample) {
    out += ' ';
    for (const std::int64_t size : spec.shape)
      out += fmt::format("{},", size);
  }
  return out;
}

std::vector<Action> actions_of(const Probing& probing, int stage) {
  const StageLayout& layout = probing.layout.stages;
  const auto micros = static_cast<int>(std::max<std::int64_t>(probing.layout.accumulation, 1));
  if (layout.stages == 1) return accumulation_schedule(micros);
  return pipeline_actions(
      probing.layout.pipeline_schedule(), {layout.stages, layout.chunks, micros}, stage);
}

bool splits_backward(const std::vector<Action>& actions) {
  return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return action.kind == ActionKind::BackwardInputs;
  });
}

bool runs_again(const Probing& probing, std::size_t block) {
  return block < probing.layout.recompute.blocks.size() && probing.layout.recompute.blocks[block];
}

}  // namespace

const std::vector<BlockBytes>& ProbeCache::training(const Probing& probing,
                                                    bool recompute,
                                                    bool split) {
  const std::string key = fmt::format("{} {} {} {}",
                                      key_of(probing, probing.layout.micro_batch),
                                      recompute,
                                      probing.layout.recompute.regions,
                                      split);
  const std::scoped_lock lock(mutex_);
  const auto found = training_.find(key);
  if (found != training_.end()) return found->second;
  return training_
      .emplace(key,
               probe_training(probed(probing, probing.layout.micro_batch),
                              recompute,
                              probing.layout.recompute.regions,
                              split))
      .first->second;
}

std::int64_t ProbeCache::evaluation(const Probing& probing, std::int64_t samples) {
  const std::string key = key_of(probing, samples);
  const std::scoped_lock lock(mutex_);
  const auto found = evaluation_.find(key);
  if (found != evaluation_.end()) return found->second;
  return evaluation_.emplace(key, probe_inference(probed(probing, samples))).first->second;
}

std::vector<BlockWork> work_of_blocks(const Probing& probing) {
  const bool split = splits_backward(actions_of(probing, /*stage=*/0));
  const ProbedModel model = probed(probing, probing.layout.micro_batch);
  std::map<bool, std::vector<BlockWork>> known;  // by whether blocks run again
  std::vector<BlockWork> out;
  for (std::size_t b = 0; b < probing.model.blocks.size(); ++b) {
    std::vector<BlockWork>& work = known[runs_again(probing, b)];
    if (work.empty())
      work = probe_work(model, runs_again(probing, b), probing.layout.recompute.regions, split);
    out.push_back(work[b]);
  }
  return out;
}

namespace {

// The needs of all blocks of the model. Where all blocks run alike they are those in the cache.
class Blocks {
 public:
  Blocks(const Probing& probing, const std::vector<Action>& actions, ProbeCache& cache) {
    const bool split = splits_backward(actions);
    const std::size_t count = probing.model.blocks.size();
    const auto of = [&](bool again) -> const std::vector<BlockBytes>& {
      return cache.training(probing, again, split);
    };
    std::size_t again = 0;
    for (std::size_t b = 0; b < count; ++b)
      again += runs_again(probing, b) ? 1 : 0;
    if (again == 0 || again == count) {
      all_ = of(again > 0);
      return;
    }
    const std::vector<BlockBytes>&once = of(false), &twice = of(true);
    for (std::size_t b = 0; b < count; ++b)
      mixed_.push_back(runs_again(probing, b) ? twice[b] : once[b]);
    all_ = mixed_;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  [[nodiscard]] std::span<const BlockBytes> all() const { return all_; }

 private:
  std::vector<BlockBytes> mixed_;
  std::span<const BlockBytes> all_;
};

}  // namespace

StoredActivations stored_activations(const Probing& probing, int stage, ProbeCache& cache) {
  const std::vector<Action> actions = actions_of(probing, stage);
  const Blocks blocks(probing, actions, cache);
  return stored_activations(actions, probing.layout.stages, stage, blocks.all());
}

StepActivations step_activations(const Probing& probing,
                                 int stage,
                                 ProbeCache& cache,
                                 std::span<const std::int64_t> sums) {
  const std::vector<Action> actions = actions_of(probing, stage);
  const Blocks blocks(probing, actions, cache);
  const auto most = [&](std::span<const std::int64_t> with) {
    return most_activations(
        actions, probing.layout.stages, stage, blocks.all(), batch_bytes(probing), with);
  };
  StepActivations out{.most = most({}), .with_sums = most(sums)};
  for (const BlockBytes& block : blocks.all())
    out.flow = std::max(out.flow, block.flow);
  return out;
}

std::vector<std::string> terms_of(const Probing& probing, std::int64_t samples) {
  return probe_terms(probed(probing, samples));
}

}  // namespace tessera::parallel
