// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/nonfinite_search.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {

/// Checks the gradients of one block and micro-batch on this rank. The lowest micro-batch is kept,
/// and within it the block whose backward runs first.
void NonfiniteSearch::inspect(const BlockRun& run) {
  const auto params = model_.params(run.block);
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->info().trainable) continue;
    GradSink& sink = params[i]->grad();
    const at::Tensor grad = sink.rows() != nullptr ? sink.rows()->values() : sink.out();
    const bool later =
        found_ && std::pair(found_->micro, -found_->block) <= std::pair(run.micro, -run.block);
    if (later || ops::first_nonfinite(
                     grad.const_data_ptr<float>(), grad.numel(), from_torch(grad.device())) < 0)
      continue;
    const auto place = std::find_if(
        model_.places().begin(), model_.places().end(), [&](const ParamPlace& candidate) {
          return candidate.info->name == params[i]->info().name;
        });
    found_ = Found{run.micro, run.block, static_cast<int>(place - model_.places().begin())};
  }
}

std::optional<NonfiniteSearch::Culprit> NonfiniteSearch::culprit_of_all() const {
  const Finding mine = finding();
  return culprit(world_.all_gather(world_.everyone(),
                                   {mine.begin(), mine.end()},
                                   TESSERA_HERE("find the gradient that is not finite")));
}

NonfiniteSearch::Finding NonfiniteSearch::finding() const {
  const Found mine = found_.value_or(Found{-1, 0, 0});
  return {static_cast<double>(mine.micro),
          static_cast<double>(mine.block),
          static_cast<double>(mine.place)};
}

/// Stages see different blocks, and tensor-parallel ranks different parts of the same gradient. The
/// result is the lowest micro-batch, of the lowest data-parallel rank that has one, on the last
/// stage.
std::optional<NonfiniteSearch::Culprit> NonfiniteSearch::culprit(
    std::span<const double> all) const {
  std::optional<Culprit> out;
  std::array<int, 3> first{};
  for (std::size_t r = 0; 3 * r < all.size(); ++r) {
    const auto micro = static_cast<int>(all[3 * r]), block = static_cast<int>(all[3 * r + 1]);
    const int rank = world_.everyone().ranks[r];  // in the job, of which the world may be a part
    const int replica = world_.mesh().index(static_cast<int>(r), mesh::AxisSet::dp());
    const std::array<int, 3> here = {micro, replica, -block};
    if (micro < 0 || (out && first <= here)) continue;
    first = here;
    const auto place = static_cast<std::size_t>(all[3 * r + 2]);
    out = Culprit{rank, micro, model_.name(block), model_.places()[place].info->name};
  }
  return out;
}

}  // namespace tessera::parallel
