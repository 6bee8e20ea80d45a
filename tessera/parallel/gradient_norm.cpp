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
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

/// The number of sums that the gradient norm has for a parameter: one for each matrix of a stacked
/// one, so that they do not depend on how its matrices are divided among ranks.
std::size_t sums_of(const ParamInfo& info) {
  if (!info.trainable) return 0;
  return static_cast<std::size_t>(info.stacked() ? info.num_matrices()
                                                 : chunks_of(info.local_numel()));
}

/// Appends the sums of a parameter, zero for matrices that other ranks hold. `chunks_of_segment`
/// returns the sums of a segment's chunks.
template <class Fn>
void append(std::vector<double>& ordered,
            const FlatLayout& layout,
            const FlatParam& param,
            Fn chunks_of_segment) {
  const std::size_t first = ordered.size();
  if (param.info->stacked()) ordered.resize(first + sums_of(*param.info), 0.0);
  for (const Segment& segment : layout.segments_of(param)) {
    const std::vector<double> chunks = chunks_of_segment(segment);
    if (param.info->stacked()) {
      ordered[first + static_cast<std::size_t>(segment.matrix)] =
          std::accumulate(chunks.begin(), chunks.end(), 0.0);
    } else {
      ordered.insert(ordered.end(), chunks.begin(), chunks.end());
    }
  }
}

/// Calls fn(group, parameter) for the trained parameters that this stage counts, in the order of
/// the model.
template <class Fn>
void for_each_counted(ModelInstance& model, Fn fn) {
  for (const auto& [group_index, param_index] : model.canonical_order()) {
    const FlatGroup& group = model.groups()[static_cast<std::size_t>(group_index)];
    if (!group.trainable || !group.counted) continue;
    fn(group_index, group.layout.params()[static_cast<std::size_t>(param_index)]);
  }
}

}  // namespace

GradientNorm::GradientNorm(comm::World& world, ModelInstance& model)
    : world_(world), model_(model) {
  for (const FlatGroup& group : model_.groups()) {
    places_.emplace_back();
    if (!group.trainable) continue;
    auto fold = std::find_if(folds_.begin(), folds_.end(), [&](const Fold& other) {
      return other.ranks == group.ranks.fold;
    });
    if (fold == folds_.end()) {
      folds_.emplace_back().ranks = group.ranks.fold;
      fold = std::prev(folds_.end());
    }
    places_.back() = {static_cast<std::size_t>(fold - folds_.begin()), fold->chunks};
    fold->chunks += group.layout.shard_numel() / kChunk;
  }
  for (Fold& fold : folds_) {
    fold.region = world_.host_transport().allocate(
        static_cast<std::size_t>(fold.chunks * fold.ranks->size()) * sizeof(double),
        memory::Tag::Communication);
  }
}

/// Gathers the sums of all chunks of the buffers of a fold.
void GradientNorm::gather(std::size_t index, const OfGroup& shard, const KnownSums& known) {
  Fold& fold = folds_[index];
  auto* all = static_cast<double*>(fold.region->data());
  double* mine = all + fold.ranks->index * fold.chunks;
  // The sums of all buffers of a device arrive together, so that the host waits once.
  const at::Tensor landing = model_.device().is_cpu()
                                 ? at::Tensor()
                                 : landing_room(fold.chunks, at::kDouble, model_.device());
  double* const to = landing.defined() ? landing.data_ptr<double>() : mine;
  for (std::size_t g = 0; g < places_.size(); ++g) {
    if (!model_.groups()[g].trainable || places_[g].fold != index) continue;
    const std::span<const double> sums =
        known ? known(static_cast<int>(g)) : std::span<const double>();
    if (!sums.empty()) {
      std::ranges::copy(sums, to + places_[g].first);
      continue;
    }
    const at::Tensor part = shard(static_cast<int>(g));
    ops::chunk_square_sums(part.const_data_ptr<float>(),
                           part.numel(),
                           kChunk,
                           to + places_[g].first,
                           from_torch(part.device()));
  }
  if (landing.defined()) {
    wait_for_device(model_.device());
    std::copy_n(to, fold.chunks, mine);
  }
  const auto count = static_cast<std::size_t>(fold.chunks);
  fold.work = world_.host_transport().all_gather(
      *fold.ranks,
      {mine, count, DType::F64, {}},
      {all, count * static_cast<std::size_t>(fold.ranks->size()), DType::F64, {}},
      TESSERA_HERE("gather the sums of the gradient norm"));
  fold.work->wait();
}

std::vector<double> GradientNorm::chunk_sums(const OfGroup& shard, const KnownSums& known) {
  for (std::size_t fold = 0; fold < folds_.size(); ++fold)
    gather(fold, shard, known);
  std::vector<double> ordered;
  for_each_counted(model_, [&](int g, const FlatParam& param) {
    const FlatLayout& layout = model_.groups()[static_cast<std::size_t>(g)].layout;
    const Place& place = places_[static_cast<std::size_t>(g)];
    const Fold& fold = folds_[place.fold];
    const auto* all = static_cast<const double*>(fold.region->data());
    const std::int64_t of_rank = layout.shard_numel() / kChunk;
    append(ordered, layout, param, [&](const Segment& segment) {
      std::vector<double> chunks;
      for (std::int64_t c = segment.begin / kChunk; c * kChunk < segment.end(); ++c)
        chunks.push_back(all[c / of_rank * fold.chunks + place.first + c % of_rank]);
      return chunks;
    });
  });
  for (Fold& fold : folds_)
    std::exchange(fold.work, nullptr)->wait_reusable();
  return over_stages(over_boxes(over_experts(std::move(ordered))));
}

/// g_r is the rank's sum over all stages, and n g_r is its estimate of the gradient. The result is
/// (1/n) sum of |n g_r|^2.
std::vector<double> GradientNorm::rank_sums(const OfGroup& own) {
  const comm::Group& ranks = *model_.only_fold("an optimizer with gradients of its own").fold;
  std::int64_t num_chunks = 0;
  for_each_counted(model_, [&](int g, const FlatParam& param) {
    for (const Segment& segment :
         model_.groups()[static_cast<std::size_t>(g)].layout.segments_of(param))
      num_chunks += chunks_of(segment.numel);
  });
  // The sums of all parameters of a device arrive together, so that the host waits once.
  const at::Tensor landing = landing_room(num_chunks, at::kDouble, model_.device());
  auto* next = landing.data_ptr<double>();
  int of_group = -1;
  at::Tensor mine;
  for_each_counted(model_, [&](int g, const FlatParam& param) {
    if (std::exchange(of_group, g) != g) mine = own(g);
    for (const Segment& segment :
         model_.groups()[static_cast<std::size_t>(g)].layout.segments_of(param)) {
      ops::chunk_square_sums(mine.const_data_ptr<float>() + segment.begin,
                             segment.numel,
                             kChunk,
                             next,
                             from_torch(mine.device()));
      next += chunks_of(segment.numel);
    }
  });
  wait_for_device(model_.device());
  next = landing.data_ptr<double>();
  std::vector<double> ordered;
  for_each_counted(model_, [&](int g, const FlatParam& param) {
    const FlatLayout& layout = model_.groups()[static_cast<std::size_t>(g)].layout;
    append(ordered, layout, param, [&](const Segment& segment) {
      const std::vector<double> chunks(next, next + chunks_of(segment.numel));
      next += chunks.size();
      return chunks;
    });
  });
  ordered = over_stages(std::move(ordered));
  const double sum = std::accumulate(ordered.begin(), ordered.end(), 0.0);
  return world_.all_gather(
      ranks, {sum * ranks.size()}, TESSERA_HERE("gather the ranks' own gradient norms"));
}

/// Collects the sums of every stage, in the order of the whole model.
std::vector<double> GradientNorm::over_stages(std::vector<double> mine) {
  const int stages = model_.layout().stages;
  if (stages == 1) return mine;
  std::vector<std::size_t> counts(static_cast<std::size_t>(stages), 0);
  for (const ParamPlace& place : model_.places())
    counts[static_cast<std::size_t>(place.stage)] += sums_of(*place.info);
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
    for (std::size_t c = sums_of(*place.info); c > 0; --c)
      ordered.push_back(all[next++]);
  }
  return ordered;
}

/// Collects the sums of the experts that other ranks hold. One rank has each sum and the others
/// have zero, so that the sum over the ranks is exact.
std::vector<double> GradientNorm::over_experts(std::vector<double> ordered) {
  const nn::ExpertParallel* const experts = model_.expert_parallel();
  if (experts == nullptr || experts->group->size() == 1) return ordered;
  std::vector<std::size_t> places;
  std::size_t at = 0;
  for_each_counted(model_, [&](int /*group*/, const FlatParam& param) {
    for (std::size_t i = sums_of(*param.info); i > 0; --i, ++at) {
      if (param.info->stacked()) places.push_back(at);
    }
  });
  if (places.empty()) return ordered;
  std::vector<double> sums;
  for (const std::size_t place : places)
    sums.push_back(ordered[place]);
  sums = world_.all_reduce(*experts->group,
                           std::move(sums),
                           comm::Op::Sum,
                           TESSERA_HERE("sums of the gradient norm over experts"));
  for (std::size_t i = 0; i < places.size(); ++i)
    ordered[places[i]] = sums[i];
  return ordered;
}

/// For a parameter, or a matrix of a stacked one, that tensor-parallel ranks hold in boxes, its
/// first sum becomes the total of all chunks of all ranks, and the others become zero. A box that
/// several ranks hold counts once.
std::vector<double> GradientNorm::over_boxes(std::vector<double> ordered) {
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (tensor == nullptr) return ordered;
  struct Cut {
    std::size_t begin, end;
  };
  std::vector<Cut> cuts;
  std::vector<double> totals;
  std::size_t at = 0;
  for_each_counted(model_, [&](int /*group*/, const FlatParam& param) {
    const ParamInfo& info = *param.info;
    const std::size_t end = at + sums_of(info);
    const std::size_t each = info.stacked() ? 1 : end - at;
    const mesh::AxisSet boxes = info.axes_of_matrix();
    const bool counts = world_.mesh().is_first(world_.rank(), mesh::AxisSet::tp() - boxes);
    for (; at < end && !boxes.empty(); at += each) {
      cuts.push_back({at, at + each});
      const auto first = ordered.begin() + static_cast<std::ptrdiff_t>(at);
      totals.push_back(
          counts ? std::accumulate(first, first + static_cast<std::ptrdiff_t>(each), 0.0) : 0.0);
    }
    at = end;
  });
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
    for (std::size_t c = sums_of(*place.info); c > 0; --c)
      finite = std::isfinite(*sum++) && finite;
    const std::pair<bool, int> here{!place.shared, place.block};
    if (finite || (out && here <= nearest)) continue;
    nearest = here;
    out = Suspect{model_.name(here.second), place.info->name};
  }
  return out;
}

}  // namespace tessera::parallel
