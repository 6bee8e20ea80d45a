// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/nonfinite_search.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {

namespace {

/// True if all values of a contiguous tensor are finite.
bool is_finite(const at::Tensor& grad) {
  return ops::first_nonfinite(
             grad.const_data_ptr<float>(), grad.numel(), from_torch(grad.device())) < 0;
}

/// True if a slice of the gradient that a sink holds is finite.
bool is_finite(GradSink& sink, int slice, const ParamInfo& info) {
  if (sink.rows() != nullptr) return is_finite(sink.rows()->values());
  const at::Tensor& grad = sink.out(slice);
  if (!info.stacked()) return is_finite(grad);
  // There may be gaps between the matrices.
  for (std::int64_t i = 0; i < grad.size(0); ++i) {
    if (!is_finite(grad[i])) return false;
  }
  return true;
}

}  // namespace

/// The rank whose micro-batch a slice of a gradient comes from.
int NonfiniteSearch::source_of(int slice, int slices) const {
  if (slices == 1) return world_.rank();
  const mesh::AxisSet sources = expert_axes(model_.weight_options().experts).sources;
  return world_.mesh().group(world_.rank(), sources)[static_cast<std::size_t>(slice)];
}

/// Findings are compared by this: the lowest micro-batch of the lowest data-parallel rank comes
/// first, and within it the block whose backward runs first.
std::array<int, 3> NonfiniteSearch::order_of(const Found& found) const {
  return {found.micro, world_.mesh().index(found.source, mesh::AxisSet::dp()), -found.block};
}

/// Checks the gradients of one block and micro-batch on this rank.
void NonfiniteSearch::inspect(const BlockRun& run) {
  const auto params = model_.params(run.block);
  for (std::size_t i = 0; i < params.size(); ++i) {
    const ParamInfo& info = params[i]->info();
    if (!info.trainable) continue;
    GradSink& sink = params[i]->grad();
    const int slices = sink.slices();
    for (int slice = 0; slice < slices; ++slice) {
      Found here{run.micro, source_of(slice, slices), run.block, 0};
      if ((found_ && order_of(*found_) <= order_of(here)) || is_finite(sink, slice, info)) continue;
      const auto place = std::find_if(
          model_.places().begin(), model_.places().end(), [&](const ParamPlace& candidate) {
            return candidate.info->name == info.name;
          });
      here.place = static_cast<int>(place - model_.places().begin());
      found_ = here;
    }
  }
}

std::optional<NonfiniteSearch::Culprit> NonfiniteSearch::culprit_of_all() const {
  const Finding mine = finding();
  return culprit(world_.all_gather(world_.everyone(),
                                   {mine.begin(), mine.end()},
                                   TESSERA_HERE("find the gradient that is not finite")));
}

NonfiniteSearch::Finding NonfiniteSearch::finding() const {
  const Found mine = found_.value_or(Found{-1, 0, 0, 0});
  return {static_cast<double>(mine.micro),
          static_cast<double>(mine.source),
          static_cast<double>(mine.block),
          static_cast<double>(mine.place)};
}

/// Stages see different blocks, and tensor-parallel ranks different parts of the same gradient. The
/// result is the lowest micro-batch, of the lowest data-parallel rank that has one, on the last
/// stage.
std::optional<NonfiniteSearch::Culprit> NonfiniteSearch::culprit(
    std::span<const double> all) const {
  constexpr std::size_t kNumbers = std::tuple_size_v<Finding>;
  std::optional<Culprit> out;
  std::array<int, 3> first{};
  for (std::size_t at = 0; at < all.size(); at += kNumbers) {
    const auto number = [&](std::size_t i) { return static_cast<int>(all[at + i]); };
    const Found found{number(0), number(1), number(2), number(3)};
    if (found.micro < 0 || (out && first <= order_of(found))) continue;
    first = order_of(found);
    out = Culprit{// in the job, of which the world may be a part
                  world_.everyone().ranks[static_cast<std::size_t>(found.source)],
                  found.micro,
                  model_.name(found.block),
                  model_.places()[static_cast<std::size_t>(found.place)].info->name};
  }
  return out;
}

}  // namespace tessera::parallel
