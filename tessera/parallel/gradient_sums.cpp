// SPDX-License-Identifier: Apache-2.0
// The sums of GradientReduction: where they are between their uses, what is added to them after the
// last micro-batch, and their norm.
#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/gradient_axes.h"
#include "tessera/parallel/gradient_reduction.h"

namespace tessera::parallel {

/// Finds the accumulators that rest in the tier, and gives them room there.
void GradientReduction::let_sums_rest() {
  const auto value = static_cast<std::int64_t>(size_of(options_.accumulate));
  const auto rests = [&](std::size_t g, const UseSlot& use) {
    const FlatGroup& group = model_.groups()[g];
    return group.trainable && !use.local &&
           sum_rests(group.layout.shard_numel() * value, place_.tier->block());
  };
  const auto each = [&](const auto& fn) {
    for (std::size_t g = 0; g < slots_.size(); ++g) {
      const FlatGroup& group = model_.groups()[g];
      for (std::size_t h = 0; h < slots_[g].uses.size(); ++h) {
        if (rests(g, slots_[g].uses[h]))
          fn(group, h, slots_[g].uses[h], group.layout.shard_numel() * value);
      }
    }
  };
  std::int64_t largest = 0;
  each([&](const FlatGroup&, std::size_t, UseSlot&, std::int64_t bytes) {
    largest = std::max(largest, bytes);
  });
  SumsTogether together;
  each([&](const FlatGroup& group, std::size_t h, UseSlot&, std::int64_t bytes) {
    together.count(
        sum_class(bytes, largest), group.uses[h].block, static_cast<int>(group.uses.size()));
  });
  together_ = together.most();
  OfSumClasses buffers{};
  for (std::size_t c = 0; c < kSumClasses; ++c)
    buffers[c] = sum_buffers(place_.buffers, together_[c]);
  resting_.emplace(*place_.tier, buffers);
  each([&](const FlatGroup& group, std::size_t, UseSlot& use, std::int64_t bytes) {
    use.resting = resting_->add(sum_class(bytes, largest),
                                group.layout.shard_numel(),
                                options_.accumulate,
                                "gradients of " + group.layout.name());
  });
}

/// Stores accumulators of a class until another one can be in memory, and a buffer is left for what
/// is read or written, if there are enough.
void GradientReduction::make_room(std::size_t of_class) {
  const auto is_of = [&](const UseSlot* use) {
    return resting_->class_of(*use->resting) == of_class;
  };
  const int most = std::max(together_[of_class], resting_->buffers(of_class) - 1);
  while (std::ranges::count_if(held_, is_of) >= most)
    store(**std::ranges::find_if(held_, is_of));
}

/// Starts to write an accumulator that rests in the tier, once its last reduction has ended.
void GradientReduction::store(UseSlot& use) {
  if (!use.resting || !use.accumulator.defined()) return;
  settle(use);
  if (use.complete) add_chunk_squares(use.accumulator, use.squares);
  use.accumulator.reset();
  std::erase(held_, &use);
}

/// Stores the accumulators of a block that are complete. Those that other ranks still add to are
/// stored when another one needs their memory.
void GradientReduction::store_sums(const BlockRun& run) {
  for (const int g : model_.groups_of(run.block)) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    for (std::size_t h = 0; h < group.uses.size(); ++h) {
      if (group.uses[h].block != run.block) continue;
      UseSlot& use = slots_[static_cast<std::size_t>(g)].uses[h];
      // The diagnosis of a step adds nothing.
      use.complete = run.micro + 1 == run.num_micros && !diagnosing_;
      if (group.ranks.fold->size() == 1 || diagnosing_) store(use);
    }
  }
}

/// The sum of a use, in memory as long as the tensor exists; undefined if there is none.
at::Tensor GradientReduction::in_memory(UseSlot& use, RestingSums::Use how) {
  if (how != RestingSums::Use::Read) use.squares.clear();
  if (!use.resting || use.accumulator.defined()) return sum_of(use);
  if (!use.stored) return {};
  // During the backward pass, the accumulators of a block may have all buffers of the class.
  make_room(resting_->class_of(*use.resting));
  return resting_->hold(*use.resting, how);
}

void GradientReduction::finish() {
  tell_arrivals();
  while (!held_.empty())
    store(*held_.front());
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    Slot& slot = slots_[g];
    for (UseSlot& use : slot.uses)
      settle(use);
    const FlatGroup& group = model_.groups()[g];
    if (!group.trainable) continue;
    if (group.across_stages()) {
      std::vector<at::Tensor> sums;
      for (UseSlot& use : slot.uses) {
        make_dense(group, use);
        sums.push_back(in_memory(use, RestingSums::Use::Change));
      }
      add_over_stages(world_, group, sums);
    } else {
      add_uses(group, slot);
    }
    for (UseSlot& use : slot.uses)
      store(use);
  }
  const auto sum = [this](std::size_t g) {
    return in_memory(slots_[g].uses.front(), RestingSums::Use::Change);
  };
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (tensor != nullptr && tensor->sequence) add_over_sequence(world_, model_, sum);
  if (model_.context_parallel() != nullptr) add_over_context(world_, model_, sum);
}

/// Adds the later uses to the first use's sum, in the order of the blocks. Rows are added to the
/// second use's sum, which then replaces the first one's.
void GradientReduction::add_uses(const FlatGroup& group, Slot& slot) {
  UseSlot& first = slot.uses.front();
  for (std::size_t h = 1; h < slot.uses.size(); ++h) {
    UseSlot& other = slot.uses[h];
    make_dense(group, other);
    if (!other.has_sum()) continue;
    if (!first.rows.sum) {
      in_memory(first, RestingSums::Use::Change).add_(in_memory(other, RestingSums::Use::Read));
      continue;
    }
    take(group, other);
    rows_.add_to(group, first.rows, other.accumulator);
    std::erase(held_, &other);
    std::swap(first.accumulator, other.accumulator);
    std::swap(first.local, other.local);
    std::swap(first.resting, other.resting);
    std::swap(first.stored, other.stored);
    if (first.resting) held_.push_back(&first);
  }
  make_dense(group, first);
}

at::Tensor GradientReduction::shard(int group) {
  UseSlot& use = slots_[static_cast<std::size_t>(group)].uses.front();
  const at::Tensor sum = use.resting ? in_memory(use, RestingSums::Use::Read) : use.accumulator;
  for (std::size_t next = static_cast<std::size_t>(group) + 1; next < slots_.size(); ++next) {
    const UseSlot& other = slots_[next].uses.front();
    if (!other.stored) continue;
    resting_->fetch(*other.resting);
    break;
  }
  return sum.defined() ? sum.to(at::kFloat) : sum;
}

void GradientReduction::clamp(double limit) {
  // A rank's own sum is its share of the whole gradient.
  if (keeps_own_) limit /= dense_.fold->size();
  for (Slot& slot : slots_) {
    const at::Tensor sum = in_memory(slot.uses.front(), RestingSums::Use::Change);
    if (sum.defined()) sum.clamp_(-limit, limit);
  }
}

void GradientReduction::keep_own(bool on) {
  TESSERA_ASSERT(!on || locally() || dense_.fold->size() == 1);
  if (on) static_cast<void>(model_.only_fold("an optimizer with gradients of its own"));
  keeps_own_ = on;
}

at::Tensor GradientReduction::own(int group) const {
  TESSERA_ASSERT(keeps_own_);
  return sum_of(slots_[static_cast<std::size_t>(group)].uses.front()).to(at::kFloat);
}

std::vector<double> GradientReduction::chunk_sums() {
  if (keeps_apart()) return norm_->rank_sums([this](int group) { return own(group); });
  return norm_->chunk_sums([this](int group) { return shard(group); },
                           [this](int group) -> std::span<const double> {
                             return slots_[static_cast<std::size_t>(group)].uses.front().squares;
                           });
}

std::optional<GradientReduction::Suspect> GradientReduction::suspect(
    std::span<const double> sums) const {
  if (keeps_apart()) return std::nullopt;  // the sums are norms of ranks, not of chunks
  return norm_->suspect(sums);
}

std::optional<GradientReduction::Culprit> GradientReduction::diagnosis() {
  diagnosing_ = false;
  return search_.culprit_of_all();
}

}  // namespace tessera::parallel
