// SPDX-License-Identifier: Apache-2.0
// Updates by compressed rules: in a compressed update the ranks exchange signs instead of
// gradients; an exact update works as with any other rule.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/compressed/compressed_state.h"
#include "tessera/parallel/parameter_norms.h"
#include "tessera/parallel/update_strategy.h"

namespace tessera::parallel {
namespace {

class CompressedUpdate final : public UpdateStrategy {
 public:
  explicit CompressedUpdate(const UpdateContext& context);

  void configure(ShardStore::Options& options) override;
  void update(ShardStore& store,
              GradientReduction& gradients,
              const optim::UpdateScalars& scalars) override;
  [[nodiscard]] bool compresses(std::int64_t step) const override {
    return rule_.exchange(step) != optim::Exchange::Gradients;
  }
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) override;
  void load(const checkpoint::Checkpoint& checkpoint) override { state_.load(checkpoint); }

  static std::unique_ptr<UpdateStrategy> make(const UpdateContext& context) {
    return std::make_unique<CompressedUpdate>(context);
  }

 private:
  ShardState make_state(const ParamShard& shard, std::size_t index, const std::string& name);
  void update_exactly(ShardStore& store,
                      GradientReduction& gradients,
                      const optim::UpdateScalars& scalars);
  void update_compressed(ShardStore& store,
                         GradientReduction& gradients,
                         optim::UpdateScalars scalars);
  void start(ShardStore& store);
  void make_vectors(ShardStore& store,
                    GradientReduction& gradients,
                    const optim::UpdateScalars& scalars);
  void measure(ShardStore& store, const optim::UpdateScalars& scalars);
  optim::CompressedView shard_view(ParamShard& shard);
  optim::CompressedView whole_view(ShardStore& store,
                                   CompressedState::Tensor& tensor,
                                   const at::Tensor& gradient);

  UpdateContext context_;
  const optim::CompressedRule& rule_;
  const comm::Group& ranks_;
  int stage_;  ///< 0 if there is one rank
  CompressedState state_;
  ParameterNorms norms_;
  bool elementwise_ = true;  ///< exact updates need no norms
  /// The values of all units in order, during a compressed update, which works on all of them at
  /// once.
  std::span<const ShardStore::Lease> leases_;
};

CompressedUpdate::CompressedUpdate(const UpdateContext& context)
    : context_(context),
      rule_(*context.rule.compressed()),
      ranks_(*context.model.only_fold("this optimizer").fold),
      stage_(ranks_.size() == 1 ? 0 : context.zero_stage),
      state_(context.world, context.model, rule_),
      norms_(context) {
  TESSERA_ASSERT(context.model.tensor_parallel() == nullptr &&
                 context.model.context_parallel() == nullptr);
  TESSERA_ASSERT(stage_ <= (rule_.local_weights() ? 0 : 1));
  for (const CompressedState::Tensor& tensor : state_.tensors())
    elementwise_ = elementwise_ && rule_.scope(tensor.facts) == optim::Scope::Elementwise;
}

void CompressedUpdate::configure(ShardStore::Options& options) {
  options.local_weights = rule_.local_weights();
  // These rules count their phases from the beginning of the whole training.
  options.counts_from_beginnings = false;
  options.make_state = [this](const ParamShard& shard, std::size_t index, const std::string& name) {
    return make_state(shard, index, name);
  };
}

/// The shard of the exchanged state is a view of the whole state.
ShardState CompressedUpdate::make_state(const ParamShard& shard,
                                        std::size_t index,
                                        const std::string& name) {
  CompressedState::Tensor& tensor = state_.tensor(shard.group, shard.segment_index);
  ShardState out{name,
                 KeptState::over(index > 0 ? at::zeros({shard.numel}, at::kFloat)
                                           : tensor.exchanged.narrow(0, shard.first, shard.numel))};
  const bool of_rank = rule_.of_rank(name);
  if (of_rank) state_.add_rank_state(name, tensor, out.kept.floats(), shard.numel);
  out.in_saves = !of_rank;
  out.in_loads = !of_rank && index > 0;
  return out;
}

void CompressedUpdate::add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save) {
  std::vector<bool> first_here;
  for (CompressedState::Tensor& tensor : state_.tensors()) {
    const ParamInfo& info = *tensor.place->info;
    const FlatLayout& layout =
        context_.model.groups()[static_cast<std::size_t>(tensor.group)].layout;
    const std::int64_t begin = layout.shard_begin(ranks_.index);
    first_here.push_back(tensor.counted && begin <= tensor.place->begin &&
                         tensor.place->begin < begin + layout.shard_numel());
    const std::string state = rule_.state(tensor.facts).front().name;
    if (for_save || rule_.of_rank(state)) continue;
    out.push_back({fmt::format("optimizer.{}.{}", state, info.name),
                   DType::F32,
                   info.shape,
                   {mesh::whole(info.shape), 0, info.numel()},
                   {static_cast<std::byte*>(tensor.exchanged.data_ptr()),
                    static_cast<std::size_t>(info.numel()) * sizeof(float)}});
  }
  if (for_save) state_.add_pieces(out, first_here);
}

void CompressedUpdate::update(ShardStore& store,
                              GradientReduction& gradients,
                              const optim::UpdateScalars& scalars) {
  if (compresses(scalars.step)) {
    update_compressed(store, gradients, scalars);
  } else {
    update_exactly(store, gradients, scalars);
  }
}

void CompressedUpdate::update_exactly(ShardStore& store,
                                      GradientReduction& gradients,
                                      const optim::UpdateScalars& scalars) {
  if (!elementwise_) norms_.prepare(store, gradients, scalars);
  for (std::size_t g = 0; g < store.num_groups(); ++g) {
    if (!context_.model.groups()[g].trainable) continue;
    for (const ParamShard& shard : store.shards(g)) {
      CompressedState::Tensor& tensor = state_.tensor(shard.group, shard.segment_index);
      rule_.adapt(tensor.scalars, shard.norms, scalars);
    }
  }
  update_shards(context_, store, gradients, scalars);
}

/// A view of a shard's range after the exchange.
optim::CompressedView CompressedUpdate::shard_view(ParamShard& shard) {
  // Rules do not read the gradient here, but the functions of ops/ need a readable pointer.
  optim::CompressedView view{leases_[shard.unit].view(shard, shard.states.front().kept.floats())};
  view.scalars = state_.tensor(shard.group, shard.segment_index).scalars;
  view.last = std::exchange(view.direction, nullptr);
  return view;
}

/// A view of a whole parameter with this rank's own gradient of it.
optim::CompressedView CompressedUpdate::whole_view(ShardStore& store,
                                                   CompressedState::Tensor& tensor,
                                                   const at::Tensor& gradient) {
  optim::CompressedView view;
  if (rule_.local_weights()) {
    view = shard_view(*store.find(tensor.group, tensor.segment));
  } else {
    view.state = {tensor.exchanged.data_ptr<float>()};
    view.numel = tensor.place->numel;
    view.facts = &tensor.facts;
    view.scalars = tensor.scalars;
  }
  view.grad = gradient.defined() ? gradient.const_data_ptr<float>() + tensor.place->begin : nullptr;
  return view;
}

void CompressedUpdate::update_compressed(ShardStore& store,
                                         GradientReduction& gradients,
                                         optim::UpdateScalars scalars) {
  std::vector<ShardStore::Lease> leases;
  for (std::size_t u = 0; u < store.units().size(); ++u)
    leases.push_back(store.acquire(u, Access::Write));
  leases_ = leases;
  // A rank's sum is its share of the gradient; multiplied by the number of ranks, the mean over the
  // ranks is the gradient.
  scalars.grad_scale *= ranks_.size();
  if (rule_.forgets(scalars.step)) state_.forget();
  if (!compresses(scalars.step - 1)) start(store);
  make_vectors(store, gradients, scalars);
  if (rule_.exchange(scalars.step) == optim::Exchange::Signs) state_.mean();
  for (CompressedState::Tensor& tensor : state_.tensors())
    rule_.received(whole_view(store, tensor, {}));
  std::vector<FlatGroup>& groups = context_.model.groups();
  for (FlatGroup& group : groups) {
    if (group.trainable) group.weights->begin_write();
  }
  if (rule_.num_measures() > 0) measure(store, scalars);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].trainable) continue;
    const auto [first, last] = store.units_of(g);
    for (std::size_t u = first; u < last; ++u)
      leases[u].stage_weights();
    for (ParamShard& shard : store.shards(g)) {
      rule_.finish(shard_view(shard), scalars);
      shard.direction.reset();
    }
    for (std::size_t u = first; u < last && !rule_.local_weights(); ++u)
      leases[u].send_weights();
    if (rule_.local_weights()) store.publish_group(g);
    groups[g].weights->post();
  }
  leases_ = {};
}

/// Called before the first compressed update after an exact one.
void CompressedUpdate::start(ShardStore& store) {
  std::vector<at::Tensor> own;
  for (std::size_t g = 0; g < store.num_groups(); ++g) {
    for (ParamShard& shard : store.shards(g)) {
      if (shard.states.empty()) continue;
      own.push_back(shard.states.front().kept.stored());
      rule_.freeze(shard_view(shard));
    }
  }
  if (stage_ > 0) state_.gather(own);
  if (rule_.fused()) state_.start();
}

void CompressedUpdate::make_vectors(ShardStore& store,
                                    GradientReduction& gradients,
                                    const optim::UpdateScalars& scalars) {
  if (rule_.keeps_last()) {
    const memory::ScopedTag tag(memory::Tag::Optimizer);
    for (std::size_t g = 0; g < store.num_groups(); ++g) {
      for (ParamShard& shard : store.shards(g)) {
        shard.direction =
            shard.states.empty() ? at::Tensor() : shard.states.front().kept.stored().clone();
      }
    }
  }
  int group = -1;
  at::Tensor gradient;
  for (CompressedState::Tensor& tensor : state_.tensors()) {
    if (std::exchange(group, tensor.group) != tensor.group)
      gradient = beside_states(store, gradients.own(tensor.group));
    rule_.local(whole_view(store, tensor, gradient), scalars);
  }
}

/// Computes quantities of every whole parameter from those of its chunks; one rank has each chunk
/// and the others have zero.
void CompressedUpdate::measure(ShardStore& store, const optim::UpdateScalars& scalars) {
  const std::int64_t kinds = rule_.num_measures();
  std::vector<CompressedState::Tensor>& tensors = state_.tensors();
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  for (const CompressedState::Tensor& tensor : tensors) {
    offsets.push_back(total);
    total += kinds * chunks_of(tensor.place->numel);
  }
  std::vector<double> all(static_cast<std::size_t>(total), 0.0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ParamShard* const shard = store.find(tensors[i].group, tensors[i].segment);
    if (shard == nullptr) continue;
    const std::int64_t mine = chunks_of(shard->numel), chunks = chunks_of(tensors[i].place->numel);
    std::vector<double> own(static_cast<std::size_t>(kinds * mine));
    rule_.measure(shard_view(*shard), scalars, own.data());
    for (std::int64_t k = 0; k < kinds; ++k) {
      std::copy_n(own.begin() + k * mine,
                  mine,
                  all.begin() + offsets[i] + k * chunks + shard->first / kChunk);
    }
  }
  if (stage_ > 0) {
    all = context_.world.all_reduce(
        ranks_, std::move(all), comm::Op::Sum, TESSERA_HERE("measures of the optimizer"));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t chunks = chunks_of(tensors[i].place->numel);
    std::vector<double> measures(static_cast<std::size_t>(kinds), 0.0);
    for (std::int64_t k = 0; k < kinds; ++k) {
      double& out = measures[static_cast<std::size_t>(k)];
      for (std::int64_t c = 0; c < chunks; ++c) {
        const double chunk = all[static_cast<std::size_t>(offsets[i] + k * chunks + c)];
        out = k + 1 < kinds ? out + chunk : std::max(out, chunk);
      }
      if (k + 1 < kinds) out = std::sqrt(out);
    }
    rule_.adapt(tensors[i].scalars, measures, scalars);
  }
}

const bool kRegistered =
    register_update(UpdateKind::Compressed, CompressedUpdate::make, CompressedState::bytes);

}  // namespace
}  // namespace tessera::parallel
