// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/parameter_norms.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {

ParameterNorms::ParameterNorms(const UpdateContext& context) : context_(context) {
  for (const FlatGroup& group : context_.model.groups()) {
    first_place_.push_back(places_.size());
    first_sum_.push_back(num_sums_);
    for (const Segment& segment : group.layout.segments()) {
      Place place;
      place.info = segment.info.get();
      place.chunks = chunks_of(segment.numel);
      place.count = group.trainable ? context_.rule.num_norms(facts_of(segment)) : 0;
      place.sum = num_sums_;
      place.norm = num_norms_;
      num_sums_ += static_cast<std::size_t>(place.count * place.chunks);
      num_norms_ += static_cast<std::size_t>(place.count);
      places_.push_back(place);
    }
  }
  first_sum_.push_back(num_sums_);
}

const ParameterNorms::Place& ParameterNorms::place(int group, int segment) const {
  return places_[first_place_[static_cast<std::size_t>(group)] + static_cast<std::size_t>(segment)];
}

std::vector<double> ParameterNorms::of(int group, int segment) const {
  const Place& at = place(group, segment);
  const auto first = norms_.begin() + static_cast<std::ptrdiff_t>(at.norm);
  return {first, first + at.count};
}

void ParameterNorms::prepare(ShardStore& store,
                             GradientReduction& gradients,
                             const optim::UpdateScalars& scalars) {
  std::vector<double> sums(num_sums_, 0.0);
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  for (std::size_t g = 0; g < store.num_groups(); ++g) {
    if (!context_.model.groups()[g].trainable) continue;
    const at::Tensor gradient = gradient_of_update(context_, store, gradients, g);
    const auto [first, last] = store.units_of(g);
    store.visit(first, last, Access::Write, [&](const ShardStore::Lease& lease) {
      for (ParamShard& shard : lease.shards())
        add_sums(store, lease, shard, gradient, scalars, sums);
    });
  }
  reduce(std::move(sums));
  for (std::size_t g = 0; g < store.num_groups(); ++g) {
    if (!context_.model.groups()[g].trainable) continue;
    for (ParamShard& shard : store.shards(g))
      shard.norms = of(shard.group, shard.segment_index);
  }
}

void ParameterNorms::add_sums(ShardStore& store,
                              const ShardStore::Lease& lease,
                              ParamShard& shard,
                              const at::Tensor& gradient,
                              const optim::UpdateScalars& scalars,
                              std::vector<double>& sums) const {
  const optim::Scope scope = context_.rule.scope(shard.facts);
  if (scope == optim::Scope::Elementwise) return;
  if (scope == optim::Scope::WholeTensor)
    shard.direction = at::empty({shard.numel}, gradient.options().dtype(at::kFloat));
  const Place& at = place(shard.group, shard.segment_index);
  const std::int64_t mine = chunks_of(shard.numel);
  std::vector<double> own(static_cast<std::size_t>(at.count * mine), 0.0);
  WidenedShard widened(lease, shard, gradient.const_data_ptr<float>());
  context_.rule.prepare(widened.view(),
                        store.beginnings().scalars_of(shard.segment->info->name, scalars),
                        own.data());
  widened.write_back();
  const std::int64_t first = static_cast<std::int64_t>(at.sum) + shard.first / kChunk;
  for (std::int64_t k = 0; k < at.count; ++k)
    std::copy_n(own.begin() + k * mine, mine, sums.begin() + first + k * at.chunks);
}

/// One rank writes each sum and the others hold zero, so the sum over the ranks is exact.
void ParameterNorms::add_over_folds(std::vector<double>& sums) const {
  std::vector<const comm::Group*> done;
  const std::vector<FlatGroup>& groups = context_.model.groups();
  for (std::size_t first = 0; first < groups.size(); ++first) {
    const comm::Group* const fold = groups[first].ranks.fold;
    if (context_.stage(static_cast<int>(first)) == 0 ||
        std::find(done.begin(), done.end(), fold) != done.end())
      continue;
    done.push_back(fold);
    const auto each_range = [&](auto fn) {
      for (std::size_t g = first; g < groups.size(); ++g) {
        if (groups[g].ranks.fold == fold) fn(first_sum_[g], first_sum_[g + 1] - first_sum_[g]);
      }
    };
    std::vector<double> of_fold;
    each_range([&](std::size_t at, std::size_t count) {
      const auto from = sums.begin() + static_cast<std::ptrdiff_t>(at);
      of_fold.insert(of_fold.end(), from, from + static_cast<std::ptrdiff_t>(count));
    });
    if (of_fold.empty()) continue;
    of_fold = context_.world.all_reduce(
        *fold, std::move(of_fold), comm::Op::Sum, TESSERA_HERE("sums of the optimizer's norms"));
    auto next = of_fold.begin();
    each_range([&](std::size_t at, std::size_t count) {
      std::copy_n(next, count, sums.begin() + static_cast<std::ptrdiff_t>(at));
      next += static_cast<std::ptrdiff_t>(count);
    });
  }
}

/// Chunks are added in order.
void ParameterNorms::reduce(std::vector<double> sums) {
  norms_.clear();
  if (sums.empty()) return;
  add_over_folds(sums);
  for (const Place& at : places_) {
    for (std::int64_t k = 0; k < at.count; ++k) {
      const auto first = sums.begin() + static_cast<std::ptrdiff_t>(at.sum) + k * at.chunks;
      norms_.push_back(std::accumulate(first, first + at.chunks, 0.0));
    }
  }
  add_boxes(norms_);
  for (double& norm : norms_)
    norm = std::sqrt(norm);
}

/// Adds the sums of the boxes in which tensor-parallel ranks hold parameters. A box that several
/// ranks hold counts once.
void ParameterNorms::add_boxes(std::vector<double>& totals) const {
  const nn::TensorParallel* const tensor = context_.model.tensor_parallel();
  if (tensor == nullptr) return;
  const auto each_norm = [&](auto fn) {
    for (const Place& at : places_) {
      for (std::size_t i = at.norm; i < at.norm + static_cast<std::size_t>(at.count); ++i) {
        if (!at.info->axes_of_matrix().empty()) fn(*at.info, totals[i]);
      }
    }
  };
  const mesh::Mesh& mesh = context_.world.mesh();
  const int rank = context_.world.rank();
  std::vector<double> sums;
  each_norm([&](const ParamInfo& info, double total) {
    const bool counts = mesh.is_first(rank, mesh::AxisSet::tp() - info.axes_of_matrix());
    sums.push_back(counts ? total : 0.0);
  });
  if (sums.empty()) return;
  sums = context_.world.all_reduce(*tensor->group,
                                   std::move(sums),
                                   comm::Op::Sum,
                                   TESSERA_HERE("sums of the optimizer's norms"));
  auto next = sums.begin();
  each_norm([&](const ParamInfo& /*info*/, double& total) { total = *next++; });
}

}  // namespace tessera::parallel
