// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_fold.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

comm::Span span_of(const at::Tensor& flat) {
  return {
      flat.data_ptr(), static_cast<std::size_t>(flat.numel()), from_torch(flat.scalar_type()), {}};
}

const Home* home_of(const FlatGroup& group, int block, std::size_t* index) {
  for (std::size_t h = 0; h < group.homes.size(); ++h) {
    if (group.homes[h].block == block) {
      *index = h;
      return &group.homes[h];
    }
  }
  return nullptr;
}

}  // namespace

GradientFold::GradientFold(comm::World& world, ModelInstance& model, int max_micros)
    : world_(world), model_(model), group_(world.group(mesh::AxisSet::dp())) {
  const bool transients = group_.size() > 1 || max_micros > 1;
  const memory::ScopedTag tag(memory::Tag::Gradients);
  for (FlatGroup& group : model_.groups()) {
    Slot slot;
    for (std::size_t h = 0; h < group.homes.size(); ++h) {
      HomeSlot home;
      if (group.trainable) {
        const std::int64_t numel = group.layout.numel();
        home.accumulator = at::zeros({group.layout.shard_numel()}, at::kFloat);
        if (transients) {
          home.region = world_.transport().allocate(static_cast<std::size_t>(numel) * 4,
                                                    memory::Tag::Gradients);
          home.transient = tensor_over(home.region, numel, DType::F32);
        }
      }
      slot.homes.push_back(std::move(home));
    }
    if (group.trainable) chunks_per_rank_ += group.layout.shard_numel() / kChunk;
    slots_.push_back(std::move(slot));
  }
  sums_region_ = world_.transport().allocate(
      static_cast<std::size_t>(chunks_per_rank_ * group_.size()) * sizeof(double),
      memory::Tag::Communication);
}

GradientFold::~GradientFold() = default;

void GradientFold::before(const Action& action, const BlockRun& run) {
  if (action.kind == Do::Backward) open(run.block, run.micro);
}

void GradientFold::after(const Action& action, const BlockRun& run) {
  if (action.kind != Do::Backward) return;
  post(run.block, run.micro);
  world_.transport().progress();
}

void GradientFold::open(int block, int micro) {
  for (const int g : model_.groups_of(block)) {
    FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const Home* home = home_of(group, block, &h);
    HomeSlot& slot = slots_[static_cast<std::size_t>(g)].homes[h];
    if (slot.work) {
      // The previous micro-batch's fold must be complete here (the accumulator's order) and at the
      // peers (its source).
      slot.work->wait();
      slot.work->wait_reusable();
      slot.work.reset();
    }
    const at::Tensor& target = direct(micro) ? slot.accumulator : slot.transient;
    for (std::size_t i = 0; i < home->params.size(); ++i) {
      home->params[i]->grad().open(view_of(target, group.layout.segments()[i]));
    }
  }
}

void GradientFold::post(int block, int micro) {
  for (const int g : model_.groups_of(block)) {
    FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const Home* home = home_of(group, block, &h);
    for (Param* param : home->params)
      param->grad().close();
    if (direct(micro)) continue;
    HomeSlot& slot = slots_[static_cast<std::size_t>(g)].homes[h];
    slot.work = world_.transport().reduce_scatter(
        group_,
        span_of(slot.transient),
        span_of(slot.accumulator),
        comm::Op::Sum,
        micro == 0 ? comm::Fold::Store : comm::Fold::Accumulate,
        TESSERA_HERE(
            fmt::format("fold gradients of {} micro-batch {}", group.layout.name(), micro)));
  }
}

void GradientFold::finish() {
  for (Slot& slot : slots_) {
    for (HomeSlot& home : slot.homes) {
      if (home.work) home.work->wait();
    }
    for (std::size_t h = 1; h < slot.homes.size(); ++h) {
      if (slot.homes[h].accumulator.defined())
        slot.homes[0].accumulator.add_(slot.homes[h].accumulator);
    }
  }
}

at::Tensor GradientFold::gather(int group) {
  HomeSlot& home = slots_[static_cast<std::size_t>(group)].homes.front();
  if (group_.size() == 1) return home.accumulator;
  if (home.work) {
    home.work->wait_reusable();
    home.work.reset();
  }
  const std::int64_t shard = home.accumulator.numel();
  at::Tensor mine = home.transient.narrow(0, group_.index * shard, shard);
  mine.copy_(home.accumulator);
  home.work =
      world_.transport().all_gather(group_,
                                    span_of(mine),
                                    span_of(home.transient),
                                    TESSERA_HERE(fmt::format("gather gradients {}", group)));
  home.work->wait();
  return home.transient;
}

std::vector<double> GradientFold::chunk_sums() {
  const int n = group_.size();
  auto* all = static_cast<double*>(sums_region_->data());
  double* mine = all + group_.index * chunks_per_rank_;
  std::int64_t at = 0;
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    if (!model_.groups()[g].trainable) continue;
    const at::Tensor& accumulator = slots_[g].homes.front().accumulator;
    ops::chunk_square_sums(
        accumulator.const_data_ptr<float>(), accumulator.numel(), kChunk, mine + at);
    at += accumulator.numel() / kChunk;
  }
  const auto count = static_cast<std::size_t>(chunks_per_rank_);
  const auto work =
      world_.transport().all_gather(group_,
                                    {mine, count, DType::F64, {}},
                                    {all, count * static_cast<std::size_t>(n), DType::F64, {}},
                                    TESSERA_HERE("gather the sums of the gradient norm"));
  work->wait();
  // From (rank, group, chunk) to (group, rank, chunk): the order of elements, whatever the number
  // of ranks.
  std::vector<double> ordered;
  ordered.reserve(count * static_cast<std::size_t>(n));
  std::int64_t offset = 0;
  for (const FlatGroup& group : model_.groups()) {
    if (!group.trainable) continue;
    const std::int64_t chunks = group.layout.shard_numel() / kChunk;
    for (int r = 0; r < n; ++r) {
      const double* from = all + r * chunks_per_rank_ + offset;
      ordered.insert(ordered.end(), from, from + chunks);
    }
    offset += chunks;
  }
  work->wait_reusable();
  return ordered;
}

std::optional<GradientFold::Culprit> GradientFold::find_nonfinite() {
  // Every rank looks through the gradient of its own last micro-batch; the lowest rank that finds
  // one speaks.
  double found = -1;
  int count = 0;
  std::vector<Culprit> names;
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const FlatGroup& group = model_.groups()[g];
    for (std::size_t h = 0; h < group.homes.size(); ++h) {
      const HomeSlot& slot = slots_[g].homes[h];
      const at::Tensor& flat = slot.transient.defined() ? slot.transient : slot.accumulator;
      for (const Segment& segment : group.layout.segments()) {
        names.push_back({0, model_.name(group.homes[h].block), segment.info->name});
        const bool bad =
            flat.defined() &&
            ops::first_nonfinite(flat.const_data_ptr<float>() + segment.begin, segment.numel) >= 0;
        if (bad && found < 0) found = count;
        ++count;
      }
    }
  }
  const auto all = world_.all_gather(group_, {found}, TESSERA_HERE("find the non-finite gradient"));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] < 0) continue;
    Culprit culprit = names[static_cast<std::size_t>(all[r])];
    culprit.rank = group_.ranks[r];
    return culprit;
  }
  return std::nullopt;
}

}  // namespace tessera::parallel
