// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weight_gather.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::parallel {

void WeightGather::begin(std::span<const Action> actions) {
  trace_.clear();
  at_ = 0;
  for (const Action& action : actions) {
    if (!reads_weights(action.kind)) continue;
    const auto [first, last] = model_.blocks_of(action.chunk);
    for (int i = 0; i < last - first; ++i)
      trace_.push_back(action.kind == Do::Forward ? first + i : last - 1 - i);
  }
}

void WeightGather::before(const Action& action, const BlockRun& run) {
  if (!reads_weights(action.kind)) return;
  TESSERA_ASSERT(at_ < trace_.size() && trace_[at_] == run.block);
  for (const int g : model_.groups_of(run.block))
    post(weights(g), numel(g));
  for (const int g : model_.groups_of(run.block))
    weights(g).wait();
  prefetch();
}

void WeightGather::after(const Action& action, const BlockRun& run) {
  if (!reads_weights(action.kind)) return;
  for (const int g : model_.groups_of(run.block)) {
    WorkingWeights& used = weights(g);
    if (!used.sharded() || needed_soon(g)) continue;
    used.release();
    live_ -= numel(g);
  }
  ++at_;
}

void WeightGather::end() {
  for (std::size_t g = 0; g < model_.groups().size(); ++g) {
    FlatGroup& group = model_.groups()[g];
    if (!group.weights.sharded() || !group.weights.gathered()) continue;
    group.weights.release();
    live_ -= group.layout.numel();
  }
}

void WeightGather::post(WorkingWeights& weights, std::int64_t numel) {
  if (weights.gathered()) return;
  weights.post();
  if (!weights.sharded()) return;
  live_ += numel;
  most_live_ = std::max(most_live_, live_);
}

/// Weights of the next runs, as far as both limits allow.
void WeightGather::prefetch() {
  std::int64_t ahead = 0;
  const std::size_t end = options_.prefetch ? trace_.size() : std::min(trace_.size(), at_ + 2);
  for (std::size_t next = at_ + 1; next < end; ++next) {
    for (const int g : model_.groups_of(trace_[next])) {
      WorkingWeights& wanted = weights(g);
      if (!wanted.sharded()) continue;
      ahead += numel(g);
      if (options_.prefetch && ahead > *options_.prefetch) return;
      if (wanted.gathered()) continue;
      if (live_ + numel(g) > options_.max_live) return;
      post(wanted, numel(g));
    }
  }
}

/// Whether a run within the reuse distance needs the group again.
bool WeightGather::needed_soon(int group) const {
  std::int64_t between = 0;
  for (std::size_t next = at_ + 1; next < trace_.size(); ++next) {
    const auto groups = model_.groups_of(trace_[next]);
    if (std::find(groups.begin(), groups.end(), group) != groups.end()) {
      return live_ <= options_.max_live || next == at_ + 1;
    }
    for (const int g : groups)
      between += weights(g).sharded() ? numel(g) : 0;
    if (between > options_.max_reuse_distance) return false;
  }
  return false;
}

}  // namespace tessera::parallel
