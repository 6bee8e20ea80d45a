// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/sharded_optimizer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {

ShardedOptimizer::ShardedOptimizer(comm::World& world,
                                   ModelInstance& model,
                                   const optim::Rule& rule,
                                   int stage,
                                   ParamSettings settings,
                                   KeptTypes kept,
                                   bool trained_alone,
                                   StatePlace place)
    : context_{world, model, rule, stage}, model_(model) {
  ShardStore::Options options;
  options.stage = stage;
  options.settings = std::move(settings);
  options.kept = kept;
  options.trained_alone = trained_alone;
  options.place = place;
  options.place.on_host = place.on_host || rule.host_only();
  strategy_ = make_update(context_);
  strategy_->configure(options);
  store_ = std::make_unique<ShardStore>(world, model, rule, std::move(options));
  if (place.early_updates && store_->on_host() && place.tier == nullptr &&
      update_kind(rule, model) == UpdateKind::Elementwise)
    early_ = std::make_unique<EarlyUpdates>(context_, *store_);
  streamed_ = place.streamed && place.tier != nullptr && !store_->on_host() &&
              update_kind(rule, model) == UpdateKind::Elementwise;
}

/// Updates a group as soon as those before it in the order of the backward pass are updated and its
/// gradient is complete. What is read from the tier next is read meanwhile.
void ShardedOptimizer::stream(GradientReduction& gradients,
                              const optim::UpdateScalars& scalars,
                              std::function<void()> before_change) {
  std::vector<int> order = gradients.arriving();
  std::erase_if(order, [&](int group) {
    const FlatGroup& of = model_.groups()[static_cast<std::size_t>(group)];
    // With stage 0 the update gathers the gradient first. Ranks may still read a tile of this rank.
    return of.tile || (context_.stage(group) == 0 && context_.fold(group).size() > 1);
  });
  if (order.empty()) return;
  update_.emplace(context_, *store_, gradients, scalars, order);
  arrived_.assign(model_.groups().size(), false);
  gradients.on_arrival([this, begins = std::move(before_change)](int group) {
    if (!std::exchange(changed_, true) && begins) begins();
    arrived_[static_cast<std::size_t>(group)] = true;
    update_->advance([this](std::size_t g) { return arrived_[g]; });
  });
}

void ShardedOptimizer::begin_step(GradientReduction& gradients,
                                  const optim::UpdateScalars& assumed,
                                  bool streams,
                                  std::function<void()> before_change) {
  changed_ = false;
  if (streamed_ && streams) return stream(gradients, assumed, std::move(before_change));
  if (!early_) return;
  early_->begin(assumed);
  gradients.on_arrival([this, &gradients](int group) {
    // With stage 0 the update gathers the gradient first.
    if (context_.stage(group) != 0 || context_.fold(group).size() == 1)
      early_->take(static_cast<std::size_t>(group), gradients.shard(group));
  });
}

void ShardedOptimizer::update(GradientReduction& gradients, const optim::UpdateScalars& scalars) {
  gradients.on_arrival(nullptr);
  if (update_) {
    TESSERA_ASSERT(update_->scalars() == scalars);
    update_->advance([](std::size_t) { return true; });
    update_.reset();
    return;
  }
  if (!early_) return strategy_->update(*store_, gradients, scalars);
  early_->settle(scalars);
  update_shards(context_, *store_, gradients, scalars, early_.get());
}

void ShardedOptimizer::skip_update() {
  TESSERA_ASSERT(!update_);
  if (early_) early_->settle(std::nullopt);
}

EarlyCounts ShardedOptimizer::early_counts() const {
  return early_ ? early_->counts() : EarlyCounts();
}

ShardedOptimizer::~ShardedOptimizer() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    wait_weights();
  } catch (const Error&) {
    // The job has failed; the rank that failed has reported the error.
  }
}

void ShardedOptimizer::follow_model(const std::vector<int>& changed, std::int64_t updates) {
  TESSERA_ASSERT(context_.rule.compressed() == nullptr);
  if (early_) early_->forget();
  store_->release_pieces();
  for (const int group : changed)
    store_->follow_model(static_cast<std::size_t>(group), updates);
  // Strategies of the rules that are left keep nothing between updates.
  strategy_ = make_update(context_);
}

void ShardedOptimizer::wait_weights() {
  for (FlatGroup& group : model_.groups())
    group.weights->settle();
}

void ShardedOptimizer::visit_trained(GradientReduction* gradients, const TrainedVisitor& visit) {
  wait_weights();
  store_->visit_trained(
      [&](std::size_t g) {
        return gradients != nullptr ? gradient_of_shard(context_, *gradients, g) : at::Tensor();
      },
      visit);
}

std::vector<checkpoint::PieceBytes> ShardedOptimizer::pieces(bool for_save) {
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  store_->release_pieces();
  std::vector<checkpoint::PieceBytes> out;
  store_->add_pieces(out, for_save);
  strategy_->add_pieces(out, for_save);
  if (for_save) store_->add_beginnings(out);
  return out;
}

/// State that the saving run did not keep (of parameters it did not train, or the momentum of an
/// optimizer without one) starts at zero or as the weights, as in a first step.
void ShardedOptimizer::load(const checkpoint::Checkpoint& checkpoint) {
  const auto load = [&](std::vector<checkpoint::PieceBytes>& wanted) {
    std::erase_if(wanted, [&](const checkpoint::PieceBytes& piece) {
      if (!piece.name.starts_with("optimizer.") || checkpoint.has(piece.name)) return false;
      checkpoint.require_whole();
      std::fill(piece.bytes.begin(), piece.bytes.end(), std::byte{0});
      return true;
    });
    checkpoint.load(wanted);
  };
  std::vector<checkpoint::PieceBytes> wanted = pieces(/*for_save=*/false);
  load(wanted);
  store_->load_resting(load);
  strategy_->load(checkpoint);
  store_->load_beginnings(checkpoint);
  store_->begin_as_weights([&](const std::string& piece) { return !checkpoint.has(piece); });
  store_->publish();
}

}  // namespace tessera::parallel
