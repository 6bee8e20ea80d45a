// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, as those of an embedding do: GradientFold keeps them as
// rows for as long as nobody writes more, and adds them to whole tensors last.
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/gradient_fold.h"

namespace tessera::parallel {
namespace {

/// Alone in its buffer.
bool is_table(const FlatGroup& group) {
  const auto segments = group.layout.segments();
  return segments.size() == 1 && segments.front().info->role == Role::TokenTable;
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

/// Not where ranks keep whole gradients, and not behind a micro-batch of this step that had more on
/// some rank. All ranks say the same, as they fold together.
bool GradientFold::takes_rows(const HomeSlot& slot, const BlockRun& run) const {
  if (!slot.rows || (keeps_own_ && group_.size() > 1)) return false;
  return run.micro == 0 || locally() || slot.only_rows;
}

/// Whether the home's gradient begins as rows. On this rank alone: another one may have written
/// more.
bool GradientFold::open_rows(const FlatGroup& group,
                             const Home& home,
                             HomeSlot& slot,
                             const BlockRun& run) {
  const bool holds = locally() && run.micro > 0;
  if (!takes_rows(slot, run) || (holds && !slot.own)) return false;
  if (!holds) slot.own.emplace(place_of(group).width);
  const auto all_of_it = [this, &group, &slot, run] {
    return view_of(open_dense(group, slot, run), group.layout.segments().front());
  };
  home.params.front()->grad().open_rows(*slot.own, all_of_it, holds);
  return true;
}

/// Whether this rank's rows are folded, or kept for the step's last micro-batch: else its whole
/// gradient is where dense ones are, and still to be folded if they are.
bool GradientFold::reduce_rows(const FlatGroup& group,
                               const Home& home,
                               HomeSlot& slot,
                               const BlockRun& run) {
  if (home.params.front()->grad().rows() == nullptr) slot.own.reset();
  if (locally() && run.micro + 1 < run.num_micros) {
    // The others learn of it as of any whole gradient.
    if (slot.own && !place_of(group).pays(slot.own->values().numel()))
      make_own_dense(group, slot, run);
    return slot.own.has_value();
  }
  using Outcome = RowExchange::Outcome;
  const Outcome outcome = fold_rows(group, slot, run.micro == 0 || locally());
  slot.only_rows = outcome == Outcome::Done;
  if (slot.only_rows) {
    slot.own.reset();
    return true;
  }
  // A dense gradient, as the head's of a tied table is, is not asked for rows again; neither are
  // too many, unless somebody wished for it.
  slot.rows = outcome == Outcome::TooMany && options_.sparse_rows;
  if (slot.own) make_own_dense(group, slot, run);
  return false;
}

/// This rank's rows, where dense gradients are.
void GradientFold::make_own_dense(const FlatGroup& group, HomeSlot& slot, const BlockRun& run) {
  const at::Tensor view = view_of(open_dense(group, slot, run), group.layout.segments().front());
  slot.own->add_to(view.zero_(), 0);
  slot.own.reset();
}

/// Of all ranks: into the sum, where it is not the step's first, or as it. The sum of many
/// micro-batches may become too many rows; then it lies in the accumulator, on this rank alone.
RowExchange::Outcome GradientFold::fold_rows(const FlatGroup& group, HomeSlot& slot, bool first) {
  using Outcome = RowExchange::Outcome;
  const TablePlace table = place_of(group);
  const std::int64_t here = group_.index * table.shard - table.begin;
  const auto add_rows = [&](const RowSum& rows) {
    slot.sum ? slot.sum->add(rows) : rows.add_to(slot.accumulator, here);
  };
  if (group_.size() == 1) {
    if (!slot.own) return Outcome::Dense;
    if (!table.pays(slot.own->values().numel())) return Outcome::TooMany;
    if (first) {
      slot.sum = std::exchange(slot.own, std::nullopt);
    } else {
      add_rows(*slot.own);
    }
  } else {
    // All micro-batches in one fold, or each one's own and then its sum.
    const bool apart = options_.reduction == Reduction::Once && !first;
    RowSum fresh(table.width);
    RowSum* const rows = first || apart ? &fresh : slot.sum ? &*slot.sum : nullptr;
    float* const dense = rows == nullptr ? slot.accumulator.data_ptr<float>() : nullptr;
    const Outcome outcome = rows_.fold(
        slot.own ? &*slot.own : nullptr,
        table,
        [&](std::int64_t element) {
          return rows != nullptr ? rows->at(element) : dense + (element - here);
        },
        group.layout.name());
    if (outcome != Outcome::Done) return outcome;
    if (first) {
      slot.sum = std::move(fresh);
    } else if (apart) {
      add_rows(fresh);
    }
  }
  if (slot.sum && !table.pays_owner(slot.sum->values().numel())) make_dense(group, slot);
  return Outcome::Done;
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
