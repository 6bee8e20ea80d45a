// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, as those of an embedding do: GradientFold keeps them as
// rows for as long as nobody writes more, and adds them to whole tensors last.
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/gradient_fold.h"

namespace tessera::parallel {
namespace {

/// Alone in its buffer.
bool is_table(const FlatGroup& group) {
  const auto segments = group.layout.segments();
  return segments.size() == 1 && is_vocabulary_table(*segments.front().info);
}

TablePlace place_of(const FlatGroup& group) {
  const Segment& segment = group.layout.segments().front();
  return {segment.begin,
          segment.info->local_shape().back(),
          group.layout.shard_numel(),
          group.layout.shards()};
}

}  // namespace

/// Of several uses of a table the first may be an embedding, whose rows are added to what another
/// use wrote. The only use ends in a whole tensor anyway: its rows are worth it where they travel.
bool GradientFold::may_have_rows(const FlatGroup& group, std::size_t home) const {
  if (options_.accumulate != DType::F32 || narrow() || !is_table(group)) return false;
  const bool added = home == 0 && group.homes.size() > 1 && !group.across_stages();
  return added || (options_.sparse_rows && group_.size() > 1);
}

/// Not where ranks keep whole gradients, and not behind a micro-batch of this step that had more.
bool GradientFold::takes_rows(const HomeSlot& slot, const BlockRun& run) const {
  if (!slot.rows || (keeps_own_ && group_.size() > 1)) return false;
  return run.micro == 0 || locally() || slot.sum;
}

/// Whether the home's gradient begins as rows. On this rank alone: another one may have written
/// more.
bool GradientFold::open_rows(const FlatGroup& group,
                             const Home& home,
                             HomeSlot& slot,
                             const BlockRun& run) {
  const bool holds = locally() && run.micro > 0;
  if (!takes_rows(slot, run) || (holds && !slot.own)) return false;
  const memory::ScopedTag tag(memory::Tag::Gradients);
  if (!holds) slot.own.emplace(place_of(group).width);
  const auto all_of_it = [this, &group, &slot, run] {
    return view_of(open_dense(group, slot, run), group.layout.segments().front());
  };
  home.params.front()->grad().open_rows(*slot.own, all_of_it, holds);
  return true;
}

/// Folds what every rank added to rows. Whether that was all: else this rank's whole gradient is
/// where dense ones are, and is still to be folded.
bool GradientFold::reduce_rows(const FlatGroup& group,
                               const Home& home,
                               HomeSlot& slot,
                               const BlockRun& run) {
  if (home.params.front()->grad().rows() == nullptr) slot.own.reset();
  if (locally() && run.micro + 1 < run.num_micros) return slot.own.has_value();
  const memory::ScopedTag tag(memory::Tag::Gradients);
  const bool first = run.micro == 0 || locally();
  using Outcome = RowExchange::Outcome;
  const Outcome outcome = fold_rows(group, slot, first);
  if (outcome == Outcome::Done) {
    slot.own.reset();
    return true;
  }
  // A dense gradient, as the head's of a tied table is, is not asked for rows again; neither are
  // too many, unless somebody wished for it.
  slot.rows = outcome == Outcome::TooMany && options_.sparse_rows;
  if (first) slot.sum.reset();
  if (slot.own) {
    const at::Tensor flat = open_dense(group, slot, run);
    const at::Tensor view = view_of(flat, group.layout.segments().front());
    slot.own->add_to(view.zero_(), 0);
    slot.own.reset();
  }
  return false;
}

/// Of all ranks: into the sum, where it is not the step's first, or as it.
RowExchange::Outcome GradientFold::fold_rows(const FlatGroup& group, HomeSlot& slot, bool first) {
  const TablePlace table = place_of(group);
  if (group_.size() == 1) {
    if (!slot.own) return RowExchange::Outcome::Dense;
    if (!table.pays(slot.own->values().numel())) return RowExchange::Outcome::TooMany;
    if (first) {
      slot.sum = std::exchange(slot.own, std::nullopt);
    } else {
      slot.sum->add(*slot.own);
    }
    return RowExchange::Outcome::Done;
  }
  // All micro-batches in one fold, or each one's own and then its sum.
  const bool apart = options_.reduction == Reduction::Once && !first;
  RowSum of_micro(table.width);
  if (first) slot.sum.emplace(table.width);
  const RowExchange::Outcome outcome = rows_.fold(
      slot.own ? &*slot.own : nullptr, table, apart ? of_micro : *slot.sum, group.layout.name());
  if (apart) slot.sum->add(of_micro);
  return outcome;
}

/// The sum of the home in its accumulator.
void GradientFold::make_dense(const FlatGroup& group, HomeSlot& slot) {
  if (!slot.sum) return;
  if (!slot.accumulator.defined()) take(group, slot);
  const TablePlace table = place_of(group);
  slot.sum->add_to(slot.accumulator.zero_(), group_.index * table.shard - table.begin);
  slot.sum.reset();
}

/// Onto the first home's sum, in the order of the blocks. Rows are added to the second's, which
/// takes the first one's place.
void GradientFold::add_homes(const FlatGroup& group, Slot& slot) {
  HomeSlot& first = slot.homes.front();
  for (std::size_t h = 1; h < slot.homes.size(); ++h) {
    HomeSlot& other = slot.homes[h];
    make_dense(group, other);
    if (!other.accumulator.defined()) continue;
    if (!first.sum) {
      sum_of(first).add_(sum_of(other));
      continue;
    }
    const TablePlace table = place_of(group);
    first.sum->add_to(other.accumulator, group_.index * table.shard - table.begin);
    first.sum.reset();
    std::swap(first.accumulator, other.accumulator);
    std::swap(first.local, other.local);
  }
  make_dense(group, first);
}

}  // namespace tessera::parallel
