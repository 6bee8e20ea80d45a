// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/activation_probe.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <typeinfo>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/comm/transports/shapes.h"
#include "tessera/comm/world.h"
#include "tessera/memory/meta_count.h"
#include "tessera/nn/expert_load.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/meta_device.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/executor.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

/// More denominators than any objective has; their values do not matter.
const std::vector<double> kDenominators(16, 1.0);

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

/// Runs the block and records its input. An objective may get only some of the `samples`.
nn::Outcome run_noted(nn::Block& block,
                      BlockBytes& bytes,
                      std::int64_t samples,
                      nn::Flow in,
                      const nn::Batch& batch,
                      nn::StepContext& context) {
  const std::int64_t parts = samples / std::max<std::int64_t>(batch.size(), 1);
  bytes.gradient = std::max(bytes.gradient, parts * bytes_of(in.diff));
  bytes.flow = std::max(bytes.flow, parts * (bytes_of(in.diff) + bytes_of(in.fixed)));
  return block.forward(std::move(in), batch, context);
}

class NotedBlock final : public nn::Block {
 public:
  NotedBlock(std::unique_ptr<nn::Block> block, BlockBytes& bytes, std::int64_t samples)
      : block_(std::move(block)), bytes_(bytes), samples_(samples) {}
  void declare(nn::Params& params) override { block_->declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    return run_noted(*block_, bytes_, samples_, std::move(in), batch, context);
  }
  [[nodiscard]] bool works_by_token() const override { return block_->works_by_token(); }

 private:
  std::unique_ptr<nn::Block> block_;
  BlockBytes& bytes_;
  std::int64_t samples_;
};

class NotedObjective final : public nn::Objective {
 public:
  NotedObjective(std::unique_ptr<nn::Block> block, BlockBytes& bytes, std::int64_t samples)
      : block_(std::move(block)),
        objective_(dynamic_cast<const nn::Objective&>(*block_)),
        bytes_(bytes),
        samples_(samples) {}
  void declare(nn::Params& params) override { block_->declare(params); }
  nn::Outcome forward(nn::Flow in, const nn::Batch& batch, nn::StepContext& context) override {
    return run_noted(*block_, bytes_, samples_, std::move(in), batch, context);
  }
  [[nodiscard]] bool works_by_token() const override { return block_->works_by_token(); }
  /// Labels have no values on meta tensors.
  [[nodiscard]] std::vector<double> denominators(const nn::Batch&) const override {
    return kDenominators;
  }
  [[nodiscard]] std::int64_t samples_at_once(const nn::Batch& batch) const override {
    return objective_.samples_at_once(batch);
  }

 private:
  std::unique_ptr<nn::Block> block_;
  const nn::Objective& objective_;
  BlockBytes& bytes_;
  std::int64_t samples_;
};

std::unique_ptr<nn::Block> noted(std::unique_ptr<nn::Block> block,
                                 BlockBytes& bytes,
                                 std::int64_t samples) {
  if (dynamic_cast<nn::Objective*>(block.get()) != nullptr)
    return std::make_unique<NotedObjective>(std::move(block), bytes, samples);
  return std::make_unique<NotedBlock>(std::move(block), bytes, samples);
}

/// Forgets all values, and records the bytes of the tensors that it takes.
class ForgettingStore final : public ActivationStore {
 public:
  explicit ForgettingStore(std::function<void(std::int64_t bytes)> note) : note_(std::move(note)) {}
  Number put(const at::Tensor& tensor) override {
    note_(static_cast<std::int64_t>(tensor.nbytes()));
    kept_.emplace(next_, Shape{tensor.sizes().vec(), tensor.strides().vec(), tensor.options()});
    return next_++;
  }
  void fetch(Number) override {}
  at::Tensor take(Number number) override {
    const Shape shape = kept_.at(number);
    kept_.erase(number);
    return at::empty_strided(shape.sizes, shape.strides, shape.options);
  }

 private:
  struct Shape {
    std::vector<std::int64_t> sizes, strides;
    at::TensorOptions options;
  };
  std::function<void(std::int64_t)> note_;
  std::map<Number, Shape> kept_;
  Number next_ = 0;
};

/// Records the bytes of tensors before they are divided.
class NotedStore final : public ActivationStore {
 public:
  NotedStore(std::function<void(std::int64_t bytes)> note, std::unique_ptr<ActivationStore> inner)
      : note_(std::move(note)), inner_(std::move(inner)) {}
  Number put(const at::Tensor& tensor) override {
    note_(static_cast<std::int64_t>(tensor.nbytes()));
    return inner_->put(tensor);
  }
  void fetch(Number number) override { inner_->fetch(number); }
  at::Tensor take(Number number) override { return inner_->take(number); }

 private:
  std::function<void(std::int64_t)> note_;
  std::unique_ptr<ActivationStore> inner_;
};

/// Records each pass and gives weight gradients memory that is not counted.
class PassPolicy final : public Policy {
 public:
  PassPolicy(memory::MetaCount& count, std::vector<BlockBytes>& blocks)
      : count_(count), blocks_(blocks) {}
  /// Sets the model, which is created after this policy.
  void watch(ModelInstance& model) { model_ = &model; }
  /// The block that runs.
  [[nodiscard]] BlockBytes& running() { return blocks_[static_cast<std::size_t>(block_)]; }
  /// Records the work too, which `world` counts in part.
  void log(std::vector<BlockWork>& work, comm::World& world) {
    work_ = &work;
    world_ = &world;
  }

  void before(const Action& action, const BlockRun& run) override {
    if (model_ != nullptr && makes_gradients(action.kind)) {
      const memory::NotCounted uncounted;
      for (const auto& param : model_->params(run.block)) {
        if (!param->info().trainable) continue;
        const nn::ExpertParallel* const experts = model_->expert_parallel();
        const int slices = param->info().stacked() && experts != nullptr
                               ? experts->world->mesh().size(expert_axes(experts->fold).sources)
                               : 1;
        const at::Tensor slice = at::empty(param->info().local_shape(),
                                           at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
        param->grad().open(std::vector<at::Tensor>(static_cast<std::size_t>(slices), slice),
                           /*holds=*/false);
      }
    }
    block_ = run.block;
    count_.reset_peak();
    start_ = count_.current();
    if (work_ == nullptr) return;
    comm::take_posted(*world_);
    log_.emplace();
  }
  void after(const Action& action, const BlockRun& run) override {
    blocks_[static_cast<std::size_t>(run.block)].passes[action.kind] = {count_.current() - start_,
                                                                        count_.peak() - start_};
    if (work_ != nullptr) {
      (*work_)[static_cast<std::size_t>(run.block)][action.kind] = {log_->rows(),
                                                                    comm::take_posted(*world_)};
      log_.reset();
    }
    if (model_ == nullptr || !makes_gradients(action.kind)) return;
    for (const auto& param : model_->params(run.block)) {
      if (!param->info().trainable) continue;
      param->grad().close();
      param->grad().release();
    }
  }

 private:
  memory::MetaCount& count_;
  std::vector<BlockBytes>& blocks_;
  ModelInstance* model_ = nullptr;
  std::int64_t start_ = 0;
  int block_ = 0;
  std::vector<BlockWork>* work_ = nullptr;
  comm::World* world_ = nullptr;
  std::optional<ops::OpLog> log_;
};

/// The key by which two blocks are similar: their class, and their parameters under their names
/// within the block.
std::string kind_of(const nn::BlockSpec& spec, const WeightOptions& weights) {
  const std::unique_ptr<nn::Block> block = spec.make();
  const nn::Block& object = *block;
  std::string out = typeid(object).name();
  for (const auto& info : nn::declared_by(spec)) {
    const bool own = info->name.starts_with(spec.name + ".");
    const bool frozen = !info->trainable || (weights.frozen && weights.frozen(info->name));
    out += fmt::format(";{} {}{}",
                       own ? info->name.substr(spec.name.size()) : info->name,
                       fmt::join(info->shape, ","),
                       frozen ? " frozen" : "");
    if (weights.tiles) out += fmt::format(" {}", weights.tiles(*info));
  }
  return out;
}

constexpr std::size_t kRun = 3;  ///< number of consecutive similar blocks that run

bool has_experts(const nn::BlockSpec& spec) {
  const std::unique_ptr<nn::Block> block = spec.make();
  const auto* const experts = dynamic_cast<const nn::HasExperts*>(block.get());
  return experts != nullptr && experts->router().load != nullptr;
}

/// The keys of all blocks. In a model with experts the last of several similar blocks is of another
/// kind: sums of a balance term that pass from layer to layer end there.
std::vector<std::string> kinds_of(const ProbedModel& probed) {
  const std::vector<nn::BlockSpec>& blocks = probed.model.blocks;
  std::vector<std::string> out;
  for (const nn::BlockSpec& spec : blocks)
    out.push_back(kind_of(spec, probed.weights));
  if (std::none_of(blocks.begin(), blocks.end(), has_experts)) return out;
  for (std::size_t b = 0; b + 1 < out.size(); ++b) {
    if (out[b] != out[b + 1]) out[b] += ";last";
  }
  return out;
}

/// For every block of the model, the index of the block that runs in its place; ascending.
std::vector<std::size_t> stand_ins(const ProbedModel& probed) {
  std::vector<std::size_t> out;
  std::string before;
  std::size_t alike = 0, run = 0;
  for (std::string& kind : kinds_of(probed)) {
    alike = kind == before ? alike + 1 : 1;
    before = std::move(kind);
    out.push_back(alike > kRun ? run - 1 : run++);
  }
  return out;
}

/// While this object lives, kernels of this thread assume `threads` threads. It starts none, which
/// at::set_num_threads() would do.
class KernelThreads {
 public:
  explicit KernelThreads(int threads) : before_(at::get_num_threads()) {
    omp_set_num_threads(threads);
  }
  ~KernelThreads() { omp_set_num_threads(before_); }
  KernelThreads(const KernelThreads&) = delete;
  KernelThreads& operator=(const KernelThreads&) = delete;

 private:
  int before_;
};

/// A model whose blocks run on meta tensors and are recorded.
class Probe {
 public:
  /// `blocks`: the blocks of the model that run.
  Probe(const ProbedModel& probed, const std::vector<std::size_t>& blocks)
      : threads_(probed.threads),
        device_(probed.device),
        bytes_(blocks.size()),
        policy_(count_, bytes_) {
    const memory::NotCounted uncounted;
    world_ = comm::shape_world(probed.mesh, /*rank=*/0);
    nn::Model model;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      nn::BlockSpec spec = probed.model.blocks[blocks[i]];
      spec.make = [make = spec.make, &bytes = bytes_[i], samples = probed.batch.size()] {
        return noted(make(), bytes, samples);
      };
      model.blocks.push_back(std::move(spec));
    }
    WeightOptions weights = probed.weights;
    weights.residency = Residency::Replicated;
    weights.packed = {};
    model_ = std::make_unique<ModelInstance>(model, std::move(weights), *world_);
    const nn::ContextParallel* const shared = model_->context_parallel();
    batch_ = shared == nullptr ? probed.batch
                               : nn::own_tokens(probed.batch, *shared, model_->objective());
    policy_.watch(*model_);
    if (probed.offloads || probed.partitions) make_store(probed.offloads, probed.partitions);
  }

  /// `work`: if it is given, it gets the work of the blocks.
  std::vector<BlockBytes> train(bool recompute,
                                bool regions,
                                bool split,
                                std::vector<BlockWork>* work = nullptr) {
    if (work != nullptr) {
      work->resize(bytes_.size());
      policy_.log(*work, *world_);
    }
    Recompute again{.blocks = std::vector<bool>(bytes_.size(), recompute), .regions = regions};
    Executor executor(*model_, {&policy_}, std::move(again), /*link=*/nullptr, store_.get());
    std::vector<Action> actions = {{ActionKind::Load}, {ActionKind::Forward}};
    if (split) {
      actions.push_back({ActionKind::BackwardInputs});
      actions.push_back({ActionKind::BackwardWeights});
    } else {
      actions.push_back({ActionKind::Backward});
    }
    executor.train(actions,
                   {.load = [this](int) { return batch_; },
                    .global_denominators =
                        [](const std::vector<std::vector<double>>&) { return kDenominators; }});
    return std::move(bytes_);
  }
  std::int64_t infer(std::vector<TermValues>* terms = nullptr) {
    Executor executor(*model_, {&policy_});
    nn::StepContext context(nn::Mode::Eval, 0);
    executor.infer(batch_, context, terms);
    std::int64_t live = 0, most = 0;
    for (const BlockBytes& block : bytes_) {
      const PassBytes& pass = block.passes.at(ActionKind::Forward);
      most = std::max(most, live + pass.peak);
      live += pass.change;
    }
    return most;
  }

 private:
  void make_store(bool offloads, bool partitions) {
    std::unique_ptr<ActivationStore> store;
    if (offloads) {
      store = std::make_unique<ForgettingStore>(
          [this](std::int64_t bytes) { policy_.running().stored.push_back(bytes); });
    }
    const nn::TensorParallel* const tensor = model_->tensor_parallel();
    if (partitions && tensor != nullptr)
      store = partitioned_activations(*tensor->world, *tensor->group, std::move(store));
    if (store == nullptr) return;
    store_ = std::make_unique<NotedStore>(
        [this](std::int64_t bytes) { policy_.running().rested += bytes; }, std::move(store));
  }

  KernelThreads threads_;
  ops::ScopedMetaDevice device_;
  nn::Batch batch_;
  std::vector<BlockBytes> bytes_;
  memory::MetaCount count_;
  PassPolicy policy_;
  std::unique_ptr<comm::World> world_;
  std::unique_ptr<ModelInstance> model_;
  std::unique_ptr<ActivationStore> store_;
};

bool alike(const BlockBytes& a, const BlockBytes& b) {
  return a.flow == b.flow && a.gradient == b.gradient && a.stored == b.stored &&
         a.passes == b.passes;
}

/// The blocks that run, given the result of stand_ins().
std::vector<std::size_t> run_for(const std::vector<std::size_t>& stand_in) {
  std::vector<std::size_t> run;
  for (std::size_t b = 0; b < stand_in.size(); ++b) {
    if (stand_in[b] == run.size()) run.push_back(b);
  }
  return run;
}

std::vector<std::size_t> all_blocks(const ProbedModel& probed) {
  std::vector<std::size_t> out(probed.model.blocks.size());
  for (std::size_t b = 0; b < out.size(); ++b)
    out[b] = b;
  return out;
}

}  // namespace

std::vector<BlockBytes> probe_training(const ProbedModel& probed,
                                       bool recompute,
                                       bool regions,
                                       bool split) {
  const std::vector<std::size_t> stand_in = stand_ins(probed);
  const std::vector<BlockBytes> bytes =
      Probe(probed, run_for(stand_in)).train(recompute, regions, split);
  std::vector<BlockBytes> out;
  for (std::size_t b = 0; b < stand_in.size(); ++b) {
    const std::size_t at = stand_in[b];
    // The first of several similar blocks that has no pass of its own.
    const bool shared = b > 0 && stand_in[b - 1] == at;
    if (shared && !alike(bytes[at], bytes[at - 1]))
      return Probe(probed, all_blocks(probed)).train(recompute, regions, split);
    out.push_back(bytes[at]);
  }
  return out;
}

std::vector<BlockWork> probe_work(const ProbedModel& probed,
                                  bool recompute,
                                  bool regions,
                                  bool split) {
  std::vector<std::size_t> stand_in = stand_ins(probed);
  const auto probe = [&] {
    std::vector<BlockWork> work;
    const std::vector<BlockBytes> bytes =
        Probe(probed, run_for(stand_in)).train(recompute, regions, split, &work);
    return std::pair(bytes, work);
  };
  auto [bytes, work] = probe();
  for (std::size_t b = 1; b < stand_in.size(); ++b) {
    const std::size_t at = stand_in[b];
    if (stand_in[b - 1] == at && !alike(bytes[at], bytes[at - 1])) {
      stand_in = all_blocks(probed);
      return probe().second;
    }
  }
  std::vector<BlockWork> out;
  for (const std::size_t at : stand_in)
    out.push_back(work[at]);
  return out;
}

std::vector<std::string> probe_terms(const ProbedModel& probed) {
  std::vector<TermValues> terms;
  Probe(probed, all_blocks(probed)).infer(&terms);
  std::vector<std::string> out;
  for (const TermValues& term : terms)
    out.push_back(term.name);
  return out;
}

std::int64_t probe_inference(const ProbedModel& probed) {
  return Probe(probed, run_for(stand_ins(probed))).infer();
}

std::int64_t most_activations(std::span<const Action> actions,
                              const StageLayout& layout,
                              int stage,
                              std::span<const BlockBytes> blocks,
                              std::int64_t batch,
                              std::span<const std::int64_t> sums) {
  std::map<int, std::int64_t> left;  // remaining actions of each micro-batch
  for (const Action& action : actions)
    ++left[action.micro];
  std::set<std::pair<int, int>> received;  // chunks and micro-batches that began with a message
  std::int64_t live = 0, most = 0;
  // The place of each block among those of the stage, for `sums` that do not exist yet.
  std::map<int, std::size_t> without_sum;
  for (int chunk = 0; chunk < layout.chunks && !sums.empty(); ++chunk) {
    const auto [first, last] = layout.blocks(stage, chunk, static_cast<int>(blocks.size()));
    for (int b = first; b < last; ++b)
      without_sum.emplace(b, without_sum.size());
  }
  const auto pass = [&](int block, ActionKind kind) {
    if (const auto at = without_sum.find(block); at != without_sum.end() && makes_gradients(kind)) {
      live += sums[at->second];
      without_sum.erase(at);
    }
    const auto& passes = blocks[static_cast<std::size_t>(block)].passes;
    const auto found = passes.find(kind);
    if (found == passes.end()) return;
    most = std::max(most, live + found->second.peak);
    live += found->second.change;
  };
  const auto change = [&](std::int64_t bytes) {
    live += bytes;
    most = std::max(most, live);
  };
  const auto of = [&](int block) -> const BlockBytes& {
    return blocks[static_cast<std::size_t>(block)];
  };
  const auto count = static_cast<int>(blocks.size());
  // Messages are received into memory that exists from the pass before them on, as the executor
  // posts them.
  std::size_t posted = 0;
  std::set<std::pair<int, int>> ran;  // chunks and micro-batches whose gradients have a shape
  const auto post = [&](const Action& action) {
    const auto [first, last] = layout.blocks(stage, action.chunk, count);
    if (action.kind == ActionKind::ReceiveFlow) change(of(first).flow);
    if (action.kind == ActionKind::ReceiveGradient && last < count) change(of(last).gradient);
  };
  const auto post_ahead = [&](std::size_t from) {
    for (posted = std::max(posted, from); posted < actions.size(); ++posted) {
      const Action& next = actions[posted];
      if (is_pass(next.kind) || next.kind == ActionKind::Load) break;
      if (next.kind == ActionKind::ReceiveGradient && !ran.contains({next.chunk, next.micro}))
        break;
      post(next);
    }
  };
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const auto [first, last] = layout.blocks(stage, action.chunk, count);
    if (is_pass(action.kind)) post_ahead(i + 1);
    switch (action.kind) {
      case ActionKind::Load:
        change(batch);
        break;
      case ActionKind::Forward:
        for (int b = first; b < last; ++b)
          pass(b, action.kind);
        ran.emplace(action.chunk, action.micro);
        break;
      case ActionKind::Backward:
      case ActionKind::BackwardInputs:
      case ActionKind::BackwardWeights:
        for (int b = last - 1; b >= first; --b)
          pass(b, action.kind);
        // The message with which a chunk began is freed when the gradients of its weights exist; in
        // a model with one stage it belongs to the previous block.
        if (makes_gradients(action.kind) && received.erase({action.chunk, action.micro}) > 0)
          live -= of(first).flow - of(first).rested;
        break;
      case ActionKind::ReceiveFlow:
        received.emplace(action.chunk, action.micro);
        if (i >= posted) post(action);
        break;
      case ActionKind::SendGradient:
        live -= of(first).gradient;
        break;
      case ActionKind::ReceiveGradient:
        if (i >= posted) post(action);
        break;
      case ActionKind::SendFlow:
        break;
    }
    if (--left[action.micro] == 0) live -= batch;
  }
  return most;
}

StoredActivations stored_activations(std::span<const Action> actions,
                                     const StageLayout& layout,
                                     int stage,
                                     std::span<const BlockBytes> blocks) {
  StoredActivations out;
  std::int64_t now = 0;
  const auto count = static_cast<int>(blocks.size());
  for (const Action& action : actions) {
    const bool forward = action.kind == ActionKind::Forward;
    if (!forward && action.kind != ActionKind::Backward &&
        action.kind != ActionKind::BackwardInputs)
      continue;
    const auto [first, last] = layout.blocks(stage, action.chunk, count);
    for (int b = first; b < last; ++b) {
      const auto& stored = blocks[static_cast<std::size_t>(b)].stored;
      now += forward ? std::ssize(stored) : -std::ssize(stored);
      if (!forward) continue;
      out.tensors += std::ssize(stored);
      for (const std::int64_t bytes : stored)
        out.largest = std::max(out.largest, bytes);
    }
    out.most = std::max(out.most, now);
  }
  return out;
}

}  // namespace tessera::parallel
