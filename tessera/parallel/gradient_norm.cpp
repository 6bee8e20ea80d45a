// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

/// The number of sums that the gradient norm has for a parameter.
std::size_t sums_of(const ParamPlace& place) {
  if (!place.info->trainable) return 0;
  return static_cast<std::size_t>(chunks_of(place.info->local_numel()));
}

}  // namespace

GradientNorm::GradientNorm(comm::World& world, ModelInstance& model)
    : world_(world), model_(model), group_(world.group(mesh::AxisSet::dp())) {
  for (const FlatGroup& group : model_.groups()) {
    if (group.trainable) chunks_per_rank_ += group.layout.shard_numel() / kChunk;
  }
  sums_region_ = world_.host_transport().allocate(
      static_cast<std::size_t>(chunks_per_rank_ * group_.size()) * sizeof(double),
      memory::Tag::Communication);
}

std::vector<double> GradientNorm::chunk_sums(const OfGroup& shard) {
  const int n = group_.size();
  auto* all = static_cast<double*>(sums_region_->data());
  double* mine = all + group_.index * chunks_per_rank_;
  std::vector<std::int64_t> first_chunk(model_.groups().size(),
                                        0);  // for each group, within a rank's part
  std::int64_t at = 0;
  for (std::size_t g = 0; g < model_.groups().size(); ++g) {
    if (!model_.groups()[g].trainable) continue;
    first_chunk[g] = at;
    const at::Tensor part = shard(static_cast<int>(g));
    ops::chunk_square_sums(
        part.const_data_ptr<float>(), part.numel(), kChunk, mine + at, from_torch(part.device()));
    at += part.numel() / kChunk;
  }
  const auto count = static_cast<std::size_t>(chunks_per_rank_);
  const auto work =
      world_.host_transport().all_gather(group_,
                                         {mine, count, DType::F64, {}},
                                         {all, count * static_cast<std::size_t>(n), DType::F64, {}},
                                         TESSERA_HERE("gather the sums of the gradient norm"));
  work->wait();
  std::vector<double> ordered;
  ordered.reserve(count * static_cast<std::size_t>(n));
  for (const auto& [group_index, segment_index] : model_.canonical_order()) {
    const auto g = static_cast<std::size_t>(group_index);
    const FlatGroup& group = model_.groups()[g];
    if (!group.trainable || !group.counted) continue;
    const Segment& segment = group.layout.segments()[static_cast<std::size_t>(segment_index)];
    const std::int64_t chunks = group.layout.shard_numel() / kChunk;
    for (std::int64_t c = segment.begin / kChunk; c * kChunk < segment.end(); ++c)
      ordered.push_back(all[c / chunks * chunks_per_rank_ + first_chunk[g] + c % chunks]);
  }
  work->wait_reusable();
  return over_stages(over_boxes(std::move(ordered)));
}

/// g_r is the rank's sum over all stages, and n g_r is its estimate of the gradient. The result is
/// (1/n) sum of |n g_r|^2.
std::vector<double> GradientNorm::rank_sums(const OfGroup& own) {
  std::vector<double> ordered;
  int of_group = -1;
  at::Tensor mine;
  for (const auto& [group_index, segment_index] : model_.canonical_order()) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(group_index)];
    if (!group.trainable || !group.counted) continue;
    if (std::exchange(of_group, group_index) != group_index) mine = own(group_index);
    const Segment& segment = group.layout.segments()[static_cast<std::size_t>(segment_index)];
    const std::size_t first = ordered.size();
    ordered.resize(first + static_cast<std::size_t>(chunks_of(segment.numel)));
    ops::chunk_square_sums(mine.const_data_ptr<float>() + segment.begin,
                           segment.numel,
                           kChunk,
                           ordered.data() + first,
                           from_torch(mine.device()));
  }
  ordered = over_stages(std::move(ordered));
  const double sum = std::accumulate(ordered.begin(), ordered.end(), 0.0);
  return world_.all_gather(
      group_, {sum * group_.size()}, TESSERA_HERE("gather the ranks' own gradient norms"));
}

/// Collects the sums of every stage, in the order of the whole model.
std::vector<double> GradientNorm::over_stages(std::vector<double> mine) {
  const int stages = model_.layout().stages;
  if (stages == 1) return mine;
  std::vector<std::size_t> counts(static_cast<std::size_t>(stages), 0);
  for (const ParamPlace& place : model_.places())
    counts[static_cast<std::size_t>(place.stage)] += sums_of(place);
  const std::size_t widest = *std::max_element(counts.begin(), counts.end());
  mine.resize(widest, 0.0);
  const std::vector<double> all =
      world_.all_gather(world_.group({mesh::Axis::Pp}),
                        mine,
                        TESSERA_HERE("gather the stages' sums of the gradient norm"));
  std::vector<std::size_t> at;
  for (std::size_t stage = 0; stage < counts.size(); ++stage)
    at.push_back(stage * widest);
  std::vector<double> ordered;
  for (const ParamPlace& place : model_.places()) {
    std::size_t& next = at[static_cast<std::size_t>(place.stage)];
    for (std::size_t c = sums_of(place); c > 0; --c)
      ordered.push_back(all[next++]);
  }
  return ordered;
}

/// For a parameter that tensor-parallel ranks hold in boxes, its first sum becomes the total of all
/// chunks of all ranks, and the others become zero. A box that several ranks hold counts once.
std::vector<double> GradientNorm::over_boxes(std::vector<double> ordered) {
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (tensor == nullptr) return ordered;
  struct Cut {
    std::size_t begin, end;
  };
  std::vector<Cut> cuts;
  std::vector<double> totals;
  std::size_t at = 0;
  for (const auto& [group_index, segment_index] : model_.canonical_order()) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(group_index)];
    if (!group.trainable || !group.counted) continue;
    const Segment& segment = group.layout.segments()[static_cast<std::size_t>(segment_index)];
    const std::size_t end = at + static_cast<std::size_t>(chunks_of(segment.numel));
    if (segment.info->cut()) {
      cuts.push_back({at, end});
      totals.push_back(segment.info->copy
                           ? 0.0
                           : std::accumulate(ordered.begin() + static_cast<std::ptrdiff_t>(at),
                                             ordered.begin() + static_cast<std::ptrdiff_t>(end),
                                             0.0));
    }
    at = end;
  }
  if (cuts.empty()) return ordered;
  totals = world_.all_reduce(*tensor->group,
                             std::move(totals),
                             comm::Op::Sum,
                             TESSERA_HERE("sums of the gradient norm over boxes"));
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    std::fill(ordered.begin() + static_cast<std::ptrdiff_t>(cuts[i].begin),
              ordered.begin() + static_cast<std::ptrdiff_t>(cuts[i].end),
              0.0);
    ordered[cuts[i].begin] = totals[i];
  }
  return ordered;
}

std::optional<GradientNorm::Suspect> GradientNorm::suspect(std::span<const double> sums) const {
  std::optional<Suspect> out;
  std::pair<bool, int> nearest;  // (not tied, block)
  auto sum = sums.begin();
  for (const ParamPlace& place : model_.places()) {
    bool finite = true;
    for (std::size_t c = sums_of(place); c > 0; --c)
      finite = std::isfinite(*sum++) && finite;
    const std::pair<bool, int> here{!place.shared, place.block};
    if (finite || (out && here <= nearest)) continue;
    nearest = here;
    out = Suspect{model_.name(here.second), place.info->name};
  }
  return out;
}

}  // namespace tessera::parallel
