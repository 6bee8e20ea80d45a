// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_rows.h"

#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

/// True if the group is a table alone in its buffer.
bool is_table(const FlatGroup& group) {
  const auto params = group.layout.params();
  return params.size() == 1 && params.front().info->role == Role::TokenTable;
}

TablePlace place_of(const FlatGroup& group) {
  const Segment& segment = group.layout.segments().front();
  return {segment.begin,
          segment.info->local_shape().back(),
          group.layout.shard_numel(),
          group.layout.shards()};
}

/// Writes this rank's rows to the tensor of its dense gradient.
void make_own_dense(RowGradient& gradient, const DenseGradient& dense) {
  gradient.own->add_to(dense.micro().zero_(), 0);
  gradient.own.reset();
}

}  // namespace

/// Offset of the rank's shard from the beginning of the table, in elements.
std::int64_t RowGradients::offset(const TablePlace& table) const {
  return group_.index * table.shard - table.begin;
}

bool RowGradients::supports(const FlatGroup& group, std::size_t use) const {
  if (!on_host_ || options_.accumulate != DType::F32 || options_.narrow() || !is_table(group) ||
      group.ranks.fold != &group_)
    return false;
  const bool added = use == 0 && group.uses.size() > 1 && !group.across_stages();
  return added || (options_.sparse_rows && group_.size() > 1);
}

bool RowGradients::takes_rows(const RowGradient& gradient, int micro) const {
  if (!gradient.enabled) return false;
  return micro == 0 || options_.locally() || gradient.only_rows;
}

bool RowGradients::open(const FlatGroup& group,
                        const Param& table,
                        RowGradient& gradient,
                        const DenseGradient& dense,
                        int micro) const {
  const bool holds = options_.locally() && micro > 0;
  if (!takes_rows(gradient, micro) || (holds && !gradient.own)) return false;
  if (!holds) gradient.own.emplace(place_of(group).width);
  table.grad().open_rows(*gradient.own, dense.micro, holds);
  return true;
}

bool RowGradients::reduce(const FlatGroup& group,
                          const Param& table,
                          RowGradient& gradient,
                          const DenseGradient& dense,
                          const BlockRun& run) {
  if (table.grad().rows() == nullptr) gradient.own.reset();
  if (options_.locally() && run.micro + 1 < run.num_micros) {
    // The reduction then informs the other ranks that the gradient is dense.
    if (gradient.own && !place_of(group).pays(gradient.own->values().numel()))
      make_own_dense(gradient, dense);
    return gradient.own.has_value();
  }
  using Outcome = RowExchange::Outcome;
  const Outcome outcome = exchange(group, gradient, dense, run.micro == 0 || options_.locally());
  gradient.only_rows = outcome == Outcome::Done;
  if (gradient.only_rows) {
    gradient.own.reset();
    return true;
  }
  // A dense gradient, such as that of a tied table's head, is not requested as rows again; nor is
  // one with too many rows, unless the configuration requests rows.
  gradient.enabled = outcome == Outcome::TooMany && options_.sparse_rows;
  if (gradient.own) make_own_dense(gradient, dense);
  return false;
}

/// Exchanges the rows of all ranks and adds them to the step's sum, or stores them if they are the
/// first. The sum over many micro-batches may get too many rows; then this rank alone writes it to
/// the shard.
RowExchange::Outcome RowGradients::exchange(const FlatGroup& group,
                                            RowGradient& gradient,
                                            const DenseGradient& dense,
                                            bool first) {
  using Outcome = RowExchange::Outcome;
  const TablePlace table = place_of(group);
  const std::int64_t here = offset(table);
  const auto add_rows = [&](const RowSum& rows) {
    gradient.sum ? gradient.sum->add(rows) : rows.add_to(dense.sum(), here);
  };
  if (group_.size() == 1) {
    if (!gradient.own) return Outcome::Dense;
    if (!table.pays(gradient.own->values().numel())) return Outcome::TooMany;
    if (first) {
      gradient.sum = std::exchange(gradient.own, std::nullopt);
    } else {
      add_rows(*gradient.own);
    }
  } else {
    // Either one reduction for all micro-batches, or one for each and a sum afterwards.
    const bool apart = options_.mode == Reduction::Once && !first;
    RowSum fresh(table.width);
    RowSum* const rows = first || apart ? &fresh : gradient.sum ? &*gradient.sum : nullptr;
    float* const whole = rows == nullptr ? dense.sum().data_ptr<float>() : nullptr;
    const Outcome outcome = exchange_.reduce(
        gradient.own ? &*gradient.own : nullptr,
        table,
        [&](std::int64_t element) {
          return rows != nullptr ? rows->at(element) : whole + (element - here);
        },
        group.layout.name());
    if (outcome != Outcome::Done) return outcome;
    if (first) {
      gradient.sum = std::move(fresh);
    } else if (apart) {
      add_rows(fresh);
    }
  }
  if (gradient.sum && !table.pays_owner(gradient.sum->values().numel()))
    make_dense(group, gradient, dense.sum());
  return Outcome::Done;
}

void RowGradients::make_dense(const FlatGroup& group,
                              RowGradient& gradient,
                              const at::Tensor& sum) const {
  add_to(group, gradient, sum.zero_());
}

void RowGradients::add_to(const FlatGroup& group,
                          RowGradient& gradient,
                          const at::Tensor& sum) const {
  TESSERA_ASSERT(gradient.sum.has_value());
  gradient.sum->add_to(sum, offset(place_of(group)));
  gradient.sum.reset();
}

}  // namespace tessera::parallel
