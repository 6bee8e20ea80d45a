// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_fold.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/gradient_axes.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

const Home& home_of(const FlatGroup& group, int block, std::size_t* index) {
  for (std::size_t h = 0; h < group.homes.size(); ++h) {
    if (group.homes[h].block != block) continue;
    *index = h;
    return group.homes[h];
  }
  throw Error(Error::Kind::Bug, "a block has no home in a group of its own", "");
}

/// Buffers serve several groups: what another one left between and behind the segments must not
/// count.
void zero_gaps(const at::Tensor& flat, const FlatLayout& layout) {
  std::int64_t end = 0;
  const auto zero = [&](std::int64_t to) {
    if (end < to) flat.narrow(0, end, to - end).zero_();
  };
  for (const Segment& segment : layout.segments()) {
    zero(segment.begin);
    end = segment.end();
  }
  zero(flat.numel());
}

}  // namespace

GradientFold::GradientFold(comm::World& world, ModelInstance& model, FoldOptions options)
    : world_(world),
      model_(model),
      options_(options),
      group_(world.group(mesh::AxisSet::dp())),
      rows_(world, group_, options_),
      norm_(world, model),
      search_(world, model) {
  const memory::ScopedTag tag(memory::Tag::Gradients);
  allocate();
}

GradientFold::~GradientFold() = default;

void GradientFold::allocate() {
  std::map<PoolKey, int> homes_of_pool;
  std::map<std::pair<std::int64_t, int>, int> of_block;  // homes of a size so far
  const at::ScalarType type = to_torch(options_.accumulate);
  for (const FlatGroup& group : model_.groups()) {
    Slot slot;
    const std::int64_t numel = group.layout.numel(), shard = group.layout.shard_numel();
    for (std::size_t h = 0; h < group.homes.size(); ++h) {
      HomeSlot home;
      if (group.trainable && locally() && group_.size() > 1) {
        home.local = make_buffer(numel, options_.accumulate);
        home.accumulator =
            home.local->flat.narrow(0, group.layout.shard_begin(group_.index), shard);
      }
      if (group.trainable) {
        const PoolKey key = {numel, of_block[{numel, group.homes[h].block}]++};
        home.pool = &pools_[key];
        home.rows.enabled = rows_.supports(group, h);
        ++homes_of_pool[key];
      }
      slot.homes.push_back(std::move(home));
    }
    slots_.push_back(std::move(slot));
  }
  const memory::ScopedTag tag(memory::Tag::GradientsInFlight);
  for (auto& [key, pool] : pools_) {
    const std::int64_t numel = key.first;
    const InFlight room = in_flight(options_, group_.size(), numel, homes_of_pool[key]);
    if (room.staging) pool.staging = at::empty({numel}, at::kFloat);
    for (int i = 0; i < room.buffers; ++i) {
      auto buffer = make_buffer(numel, room.type);
      if (room.reduced)
        buffer->reduced = at::empty({numel / group_.size()}, at::TensorOptions().dtype(type));
      if (room.received) buffer->received = at::empty_like(buffer->flat);
      pool.buffers.push_back(std::move(buffer));
    }
  }
}

std::unique_ptr<GradientFold::Buffer> GradientFold::make_buffer(std::int64_t numel,
                                                                DType dtype) const {
  auto buffer = std::make_unique<Buffer>();
  buffer->region = world_.transport().allocate(static_cast<std::size_t>(numel) * size_of(dtype),
                                               memory::current_tag());
  buffer->flat = tensor_over(buffer->region, numel, dtype);
  return buffer;
}

/// A buffer that nobody uses any more: its owner has its sum, and peers have read it.
GradientFold::Buffer& GradientFold::acquire(Pool& pool) {
  TESSERA_ASSERT(!pool.buffers.empty());
  Buffer& buffer = *pool.buffers[pool.next];
  pool.next = (pool.next + 1) % pool.buffers.size();
  // A rank alone posts nothing, but what it made may still have to be added.
  if (buffer.user != nullptr) settle(*buffer.user);
  if (buffer.work) {
    buffer.work->wait();
    buffer.work->wait_reusable();
    buffer.work.reset();
  }
  buffer.user = nullptr;
  return buffer;
}

/// Until the last reduction of the home is in its accumulator.
void GradientFold::settle(HomeSlot& home) {
  Buffer* buffer = home.buffer != nullptr ? home.buffer : home.local.get();
  if (buffer == nullptr || (buffer == home.buffer && buffer->user != &home)) return;
  if (buffer->work) buffer->work->wait();
  fold_received(*buffer);
  if (std::exchange(home.add_reduced, false)) home.accumulator.add_(buffer->reduced);
}

void GradientFold::before(const Action& action, const BlockRun& run) {
  if (makes_gradients(action.kind)) open(run);
}

void GradientFold::after(const Action& action, const BlockRun& run) {
  if (makes_gradients(action.kind)) {
    for (GradSink* sink : sinks_of(run))
      sink->close();
    if (watching_ || diagnosing_) search_.inspect(run);
    if (!diagnosing_) post(run);
    for (GradSink* sink : sinks_of(run))
      sink->release();
  }
  world_.show_life();
  // A forward pass goes on with what the micro-batch before it left under way: peers wait for their
  // buffers. In the first one only gathers of weights are, and no copy of them is better made
  // early: wait() makes it just before the block reads it.
  if (run.micro > 0 || is_backward(action.kind)) world_.transport().progress();
}

std::vector<GradSink*> GradientFold::sinks_of(const BlockRun& run) const {
  std::vector<GradSink*> out;
  for (const int g : model_.groups_of(run.block)) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    for (Param* param : home_of(group, run.block, &h).params)
      out.push_back(&param->grad());
  }
  return out;
}

/// Where this micro-batch's gradient goes.
at::Tensor GradientFold::target(HomeSlot& home, int micro) {
  if (home.pool->staging.defined()) return home.pool->staging;
  if (direct(micro)) return home.accumulator;
  if (home.local) return home.local->flat;
  return home.buffer->flat;
}

/// Room for the sum of a home that has none.
void GradientFold::take(const FlatGroup& group, HomeSlot& home) {
  const memory::ScopedTag tag(memory::Tag::Gradients);
  home.accumulator = at::empty({group.layout.shard_numel()},
                               at::TensorOptions().dtype(to_torch(options_.accumulate)));
  // A sum that gradients are written into has gaps that nobody writes.
  if (direct(0)) zero_gaps(home.accumulator, group.layout);
}

/// Where rows of the home's gradient go once they are too many, or a block writes more.
DenseGradient GradientFold::dense_of(const FlatGroup& group, HomeSlot& slot, const BlockRun& run) {
  return {.micro =
              [this, &group, &slot, run] {
                return view_of(open_dense(group, slot, run), group.layout.segments().front());
              },
          .sum = [this, &group, &slot]() -> const at::Tensor& {
            if (!slot.accumulator.defined()) take(group, slot);
            return slot.accumulator;
          }};
}

/// The sum of the home in its accumulator.
void GradientFold::make_dense(const FlatGroup& group, HomeSlot& slot) {
  if (!slot.rows.sum) return;
  if (!slot.accumulator.defined()) take(group, slot);
  rows_.make_dense(group, slot.rows, slot.accumulator);
}

void GradientFold::open(const BlockRun& run) {
  for (const int g : model_.groups_of(run.block)) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const Home& home = home_of(group, run.block, &h);
    HomeSlot& slot = slots_[static_cast<std::size_t>(g)].homes[h];
    if (takes_rows(slot, run) &&
        rows_.open(group, *home.params.front(), slot.rows, dense_of(group, slot, run), run.micro))
      continue;
    const at::Tensor flat = open_dense(group, slot, run);
    const bool holds = run.micro > 0 && locally() && !slot.pool->staging.defined();
    for (std::size_t i = 0; i < home.params.size(); ++i)
      home.params[i]->grad().open(view_of(flat, group.layout.segments()[i]), holds);
  }
}

/// Where all of the micro-batch's gradient goes.
at::Tensor GradientFold::open_dense(const FlatGroup& group, HomeSlot& slot, const BlockRun& run) {
  if (!slot.accumulator.defined()) take(group, slot);
  // The accumulator takes one micro-batch after the other.
  settle(slot);
  if (slot.local && slot.local->work) {
    slot.local->work->wait_reusable();
    slot.local->work.reset();
  }
  if (!locally() && !direct(run.micro)) slot.buffer = &acquire(*slot.pool);
  at::Tensor flat = target(slot, run.micro);
  if (!direct(run.micro)) zero_gaps(flat, group.layout);
  return flat;
}

void GradientFold::post(const BlockRun& run) {
  for (const int g : model_.groups_of(run.block)) {
    FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const Home& home = home_of(group, run.block, &h);
    reduce(g, home, slots_[static_cast<std::size_t>(g)].homes[h], run);
  }
}

void GradientFold::reduce(int g, const Home& home, HomeSlot& slot, const BlockRun& run) {
  const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
  if (takes_rows(slot, run) &&
      rows_.reduce(group, *home.params.front(), slot.rows, dense_of(group, slot, run), run))
    return;
  make_dense(group, slot);
  const at::Tensor& staging = slot.pool->staging;
  if (slot.local || (locally() && staging.defined())) {
    const at::Tensor& sum = slot.local ? slot.local->flat : slot.accumulator;
    if (staging.defined()) run.micro == 0 ? sum.copy_(staging) : sum.add_(staging);
    if (!slot.local || keeps_own_ || run.micro + 1 < run.num_micros) return;
  } else if (direct(run.micro)) {
    return;
  } else if (staging.defined()) {
    slot.buffer->flat.copy_(staging);
  }
  if (slot.local && narrow()) {
    slot.buffer = &acquire(*slot.pool);
    slot.buffer->flat.copy_(slot.local->flat);
  }
  Buffer& buffer = slot.buffer != nullptr ? *slot.buffer : *slot.local;
  buffer.user = &slot;
  const bool add = options_.reduction == Reduction::Once && !slot.local && run.micro > 0;
  slot.add_reduced = add;
  const comm::Fold fold = options_.reduction == Reduction::Each && run.micro > 0
                              ? comm::Fold::Accumulate
                              : comm::Fold::Store;
  const at::Tensor& out = add ? buffer.reduced : slot.accumulator;
  exchange(buffer,
           out,
           fold,
           TESSERA_HERE(
               fmt::format("fold gradients of {} micro-batch {}", group.layout.name(), run.micro)));
}

/// Every owner gets its part of every rank's gradient, folded in rank order into `out`.
void GradientFold::exchange(Buffer& buffer,
                            const at::Tensor& out,
                            comm::Fold fold,
                            comm::CallSite site) {
  if (!narrow()) {
    buffer.work = world_.transport().reduce_scatter(
        group_, span_of(buffer.flat), span_of(out), comm::Op::Sum, fold, std::move(site));
    return;
  }
  buffer.folds = out;
  buffer.stores = fold == comm::Fold::Store;
  if (group_.size() == 1) return fold_received(buffer);
  buffer.work = world_.transport().all_to_all(
      group_, span_of(buffer.flat), span_of(buffer.received), std::move(site));
}

/// Narrow gradients widened and added to the fp32 sum, in rank order.
void GradientFold::fold_received(Buffer& buffer) const {
  if (!buffer.folds.defined()) return;
  const at::Tensor out = std::exchange(buffer.folds, at::Tensor());
  const at::Tensor& all = group_.size() == 1 ? buffer.flat : buffer.received;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const at::Tensor part = all.narrow(0, rank * out.numel(), out.numel());
    rank == 0 && buffer.stores ? out.copy_(part) : out.add_(part);
  }
}

void GradientFold::begin(std::span<const Action> actions) {
  search_.clear();
  const bool makes = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return makes_gradients(action.kind);
  });
  if (!makes) return;
  // Until a block runs its backward, activations may have the room of its sum.
  for (Slot& slot : slots_) {
    for (HomeSlot& home : slot.homes) {
      if (!home.local) home.accumulator.reset();
      home.rows.clear();
    }
  }
}

void GradientFold::finish() {
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    Slot& slot = slots_[g];
    for (HomeSlot& home : slot.homes)
      settle(home);
    const FlatGroup& group = model_.groups()[g];
    if (!group.across_stages()) {
      add_homes(group, slot);
      continue;
    }
    if (!group.trainable) continue;
    std::vector<at::Tensor> sums;
    for (HomeSlot& home : slot.homes) {
      make_dense(group, home);
      sums.push_back(sum_of(home));
    }
    add_over_stages(world_, group, sums);
  }
  const auto sum = [this](std::size_t g) -> const at::Tensor& {
    return sum_of(slots_[g].homes.front());
  };
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  if (tensor != nullptr && tensor->sequence) add_over_sequence(world_, model_, sum);
  if (model_.context_parallel() != nullptr) add_over_context(world_, model_, sum);
}

/// Onto the first home's sum, in the order of the blocks. Rows are added to the second's, which
/// takes the first one's place.
void GradientFold::add_homes(const FlatGroup& group, Slot& slot) {
  HomeSlot& first = slot.homes.front();
  for (std::size_t h = 1; h < slot.homes.size(); ++h) {
    HomeSlot& other = slot.homes[h];
    make_dense(group, other);
    if (!other.accumulator.defined()) continue;
    if (!first.rows.sum) {
      sum_of(first).add_(sum_of(other));
      continue;
    }
    rows_.add_to(group, first.rows, other.accumulator);
    std::swap(first.accumulator, other.accumulator);
    std::swap(first.local, other.local);
  }
  make_dense(group, first);
}

at::Tensor GradientFold::shard(int group) const {
  const at::Tensor& sum = slots_[static_cast<std::size_t>(group)].homes.front().accumulator;
  return sum.defined() ? sum.to(at::kFloat) : sum;
}

at::Tensor GradientFold::gather(int g) {
  HomeSlot& home = slots_[static_cast<std::size_t>(g)].homes.front();
  if (group_.size() == 1) return shard(g);
  // Sums do not fit into what is narrow; the sinks' room is free now.
  const bool apart = narrow() && !home.local;
  Buffer& buffer = home.local ? *home.local : acquire(*home.pool);
  if (buffer.work) {
    buffer.work->wait_reusable();
    buffer.work.reset();
  }
  const at::Tensor& flat = apart ? home.pool->staging : buffer.flat;
  const std::int64_t shard = home.accumulator.numel();
  const at::Tensor mine = flat.narrow(0, group_.index * shard, shard);
  if (!home.local) mine.copy_(home.accumulator);
  buffer.work = world_.transport().all_gather(
      group_, span_of(mine), span_of(flat), TESSERA_HERE(fmt::format("gather gradients {}", g)));
  buffer.work->wait();
  return flat.to(at::kFloat);
}

void GradientFold::clamp(double limit) {
  // A rank's own sum is its share of the whole.
  if (keeps_own_) limit /= group_.size();
  for (Slot& slot : slots_) {
    const at::Tensor& sum = sum_of(slot.homes.front());
    if (sum.defined()) sum.clamp_(-limit, limit);
  }
}

void GradientFold::keep_own(bool on) {
  TESSERA_ASSERT(!on || locally() || group_.size() == 1);
  keeps_own_ = on;
}

at::Tensor GradientFold::own(int group) const {
  TESSERA_ASSERT(keeps_own_);
  return sum_of(slots_[static_cast<std::size_t>(group)].homes.front()).to(at::kFloat);
}

std::vector<double> GradientFold::chunk_sums() {
  if (keeps_apart()) return norm_.rank_sums([this](int group) { return own(group); });
  return norm_.chunk_sums([this](int group) { return shard(group); });
}

std::optional<GradientFold::Suspect> GradientFold::suspect(std::span<const double> sums) const {
  if (keeps_apart()) return std::nullopt;  // the sums are norms of ranks, not of chunks
  return norm_.suspect(sums);
}

std::optional<GradientFold::Culprit> GradientFold::diagnosis() {
  diagnosing_ = false;
  return search_.culprit_of_all();
}

}  // namespace tessera::parallel
