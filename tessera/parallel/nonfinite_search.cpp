// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/nonfinite_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/row_sum.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {

namespace {

/// True if all values of contiguous tensors are finite.
bool are_finite(const std::vector<at::Tensor>& gradients) {
  return std::ranges::all_of(gradients, [](const at::Tensor& grad) {
    return ops::first_nonfinite(
               grad.const_data_ptr<float>(), grad.numel(), from_torch(grad.device())) < 0;
  });
}

/// The same as a number of the device.
at::Tensor are_finite_there(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> each;
  for (const at::Tensor& grad : gradients)
    each.push_back(grad.isfinite().all());
  return each.size() == 1 ? each.front() : at::stack(each).all();
}

/// The values of a slice of the gradient that a sink holds. There may be gaps between the matrices
/// of a stacked parameter.
std::vector<at::Tensor> slice_of(GradSink& sink, int slice, const ParamInfo& info) {
  if (sink.rows() != nullptr) return {sink.rows()->values()};
  const at::Tensor& grad = sink.out(slice);
  return info.stacked() ? grad.unbind(0) : std::vector<at::Tensor>{grad};
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
      const Found here{run.micro, source_of(slice, slices), run.block, 0};
      const std::vector<at::Tensor> values = slice_of(sink, slice, info);
      if (!model_.device().is_cpu()) {
        open_.push_back({here, info.name, are_finite_there(values)});
      } else if ((!found_ || order_of(here) < order_of(*found_)) && !are_finite(values)) {
        take(here, info.name);
      }
    }
  }
}

/// Keeps a finding if it comes before the one that is known.
void NonfiniteSearch::take(Found here, const std::string& parameter) {
  if (found_ && order_of(*found_) <= order_of(here)) return;
  const auto place = std::find_if(
      model_.places().begin(), model_.places().end(), [&](const ParamPlace& candidate) {
        return candidate.info->name == parameter;
      });
  here.place = static_cast<int>(place - model_.places().begin());
  found_ = here;
}

std::optional<NonfiniteSearch::Culprit> NonfiniteSearch::culprit_of_all() {
  const Finding mine = finding();
  return culprit(world_.all_gather(world_.everyone(),
                                   {mine.begin(), mine.end()},
                                   TESSERA_HERE("find the gradient that is not finite")));
}

NonfiniteSearch::Finding NonfiniteSearch::finding() {
  if (!open_.empty()) {
    std::vector<at::Tensor> flags;
    for (const Open& one : open_)
      flags.push_back(one.finite);
    const at::Tensor finite = landing_room(std::ssize(flags), at::kBool, model_.device());
    finite.copy_(at::stack(flags), /*non_blocking=*/true);
    wait_for_device(model_.device());
    const std::vector<Open> open = std::exchange(open_, {});
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (!finite.const_data_ptr<bool>()[i]) take(open[i].here, open[i].parameter);
    }
  }
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
