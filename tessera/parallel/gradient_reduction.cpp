// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_reduction.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/reduce.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/gradient_axes.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

const BlockUse& use_of(const FlatGroup& group, int block, std::size_t* index) {
  for (std::size_t h = 0; h < group.uses.size(); ++h) {
    if (group.uses[h].block != block) continue;
    *index = h;
    return group.uses[h];
  }
  throw Error(Error::Kind::Bug,
              "a flat buffer lists no use by its own block",
              "report this with the configuration");
}

/// Buffers serve several groups, so values that another group left between and after the segments
/// must not count.
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

/// A slice of values of which there are `slices` of the same size.
at::Tensor slice_of(const at::Tensor& all, int slice, int slices) {
  const std::int64_t numel = all.numel() / slices;
  return all.narrow(0, slice * numel, numel);
}

void wait_reusable(std::vector<comm::WorkPtr>& works) {
  for (const comm::WorkPtr& work : works)
    work->wait_reusable();
  works.clear();
}

/// Adds `parts` from the left, with the bits of comm::reduce_arrays() also on a device.
void add_in_order(const at::Tensor& out, const std::vector<at::Tensor>& parts, bool stores) {
  if (out.is_cpu()) {
    std::vector<const void*> inputs;
    if (!stores) inputs.push_back(out.const_data_ptr());
    for (const at::Tensor& part : parts)
      inputs.push_back(part.const_data_ptr());
    comm::reduce_arrays(comm::Op::Sum,
                        from_torch(out.scalar_type()),
                        out.mutable_data_ptr(),
                        inputs,
                        static_cast<std::size_t>(out.numel()));
    return;
  }
  at::Tensor sum =
      (stores ? parts.front() : out).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = stores ? 1 : 0; i < parts.size(); ++i)
    sum.add_(parts[i]);
  out.copy_(sum);
}

}  // namespace

GradientReduction::GradientReduction(comm::World& world,
                                     ModelInstance& model,
                                     ReductionOptions options,
                                     SumPlace place)
    : world_(world),
      model_(model),
      options_(options),
      dense_(ranks_of(world, dense_axes())),
      rows_(world, *dense_.fold, options_),
      place_(place),
      norm_(std::in_place, world, model),
      search_(world, model) {
  const memory::ScopedTag tag(memory::Tag::Gradients);
  if (options_.keeps_residuals(dense_.fold->size()))
    residuals_.emplace(*model_.only_fold("error feedback").fold, model_);
  open_channels_of_tied(world_, model_);
  allocate();
}

GradientReduction::~GradientReduction() = default;

void GradientReduction::follow_model() {
  // Peers may still read a buffer of the last step.
  for (auto& [key, pool] : pools_) {
    for (std::size_t i = 0; i < pool.buffers.size(); ++i)
      static_cast<void>(acquire(pool));
  }
  for (Slot& slot : slots_) {
    for (UseSlot& use : slot.uses) {
      if (!use.local) continue;
      for (const comm::WorkPtr& work : use.local->works)
        work->wait();
      wait_reusable(use.local->works);
    }
  }
  held_.clear();
  slots_.clear();
  pools_.clear();
  norm_.emplace(world_, model_);
  if (residuals_) residuals_->follow_model();
  const memory::ScopedTag tag(memory::Tag::Gradients);
  allocate();
}

void GradientReduction::allocate() {
  std::map<PoolKey, int> of_block;  // number of uses of each fold and size so far, by block
  const c10::Device device = device_of(world_);
  const auto accumulated = at::TensorOptions().dtype(to_torch(options_.accumulate)).device(device);
  for (const FlatGroup& group : model_.groups()) {
    Slot slot;
    const std::int64_t numel = group.layout.numel(), shard = group.layout.shard_numel();
    const GroupRanks& ranks = group.ranks;
    for (std::size_t h = 0; h < group.uses.size(); ++h) {
      UseSlot use;
      use.ranks = &ranks;
      if (group.trainable && locally() && ranks.inputs() > 1) {
        use.local = make_buffer(ranks, ranks.slices * numel, options_.accumulate);
        if (use.in_local()) {
          use.accumulator =
              use.local->flat.narrow(0, group.layout.shard_begin(ranks.fold->index), shard);
        } else if (ranks.fold->size() > 1 && !narrow()) {
          use.local->received = at::empty_like(use.local->flat);
        }
      }
      if (group.trainable) {
        const std::uint16_t fold = group.axes.fold.bits();
        const int index = of_block[{fold, numel, group.uses[h].block}]++;
        use.pool = &pools_[{fold, numel, index}];
        use.pool->ranks = &ranks;
        ++use.pool->uses;
        use.rows.enabled = rows_.supports(group, h);
        if (residuals_) use.residual = residuals_->of(slots_.size(), h);
      }
      slot.uses.push_back(std::move(use));
    }
    slots_.push_back(std::move(slot));
  }
  const memory::ScopedTag tag(memory::Tag::GradientsInFlight);
  for (auto& [key, pool] : pools_) {
    const int ranks = pool.ranks->fold->size(), slices = pool.ranks->slices;
    const InFlight room = in_flight(options_, ranks, key.numel, pool.uses, slices);
    if (room.staging) pool.staging = at::empty({slices * key.numel}, accumulated.dtype(at::kFloat));
    for (int i = 0; i < room.buffers; ++i) {
      auto buffer = make_buffer(*pool.ranks, slices * options_.sent(key.numel), room.type);
      if (room.reduced) buffer->reduced = at::empty({key.numel / ranks}, accumulated);
      if (room.received) buffer->received = at::empty_like(buffer->flat);
      pool.buffers.push_back(std::move(buffer));
    }
  }
  if (place_.tier != nullptr) let_sums_rest();
}

std::unique_ptr<GradientReduction::Buffer> GradientReduction::make_buffer(const GroupRanks& ranks,
                                                                          std::int64_t numel,
                                                                          DType dtype) const {
  auto buffer = std::make_unique<Buffer>();
  buffer->ranks = &ranks;
  buffer->region = world_.transport().allocate(static_cast<std::size_t>(numel) * size_of(dtype),
                                               memory::current_tag());
  buffer->flat = tensor_over(buffer->region, numel, dtype);
  return buffer;
}

/// Returns a buffer that is no longer in use: its owner has its sum, and peers have read it.
GradientReduction::Buffer& GradientReduction::acquire(Pool& pool) {
  TESSERA_ASSERT(!pool.buffers.empty());
  Buffer& buffer = *pool.buffers[pool.next];
  pool.next = (pool.next + 1) % pool.buffers.size();
  // A single rank posts nothing, but its gradient may still have to be added.
  if (buffer.user != nullptr) settle(*buffer.user);
  for (const comm::WorkPtr& work : buffer.works)
    work->wait();
  wait_reusable(buffer.works);
  buffer.user = nullptr;
  return buffer;
}

/// Waits until the last reduction of the use is in its accumulator.
void GradientReduction::settle(UseSlot& use) {
  Buffer* buffer = use.buffer != nullptr ? use.buffer : use.local.get();
  if (buffer == nullptr || (buffer == use.buffer && buffer->user != &use)) return;
  for (const comm::WorkPtr& work : buffer->works)
    work->wait();
  reduce_received(*buffer);
  if (std::exchange(use.add_reduced, false)) use.accumulator.add_(buffer->reduced);
}

void GradientReduction::before(const Action& action, const BlockRun& run) {
  if (makes_gradients(action.kind)) open(run);
}

void GradientReduction::after(const Action& action, const BlockRun& run) {
  if (makes_gradients(action.kind)) {
    for (GradSink* sink : sinks_of(run))
      sink->close();
    if (watching_ || diagnosing_) search_.inspect(run);
    if (!diagnosing_) post(run);
    for (GradSink* sink : sinks_of(run))
      sink->release();
    if (resting_) store_sums(run);
    if (arrived_ && !diagnosing_ && run.micro + 1 == run.num_micros) {
      tell_arrivals();
      std::ranges::copy_if(model_.groups_of(run.block), std::back_inserter(coming_), [this](int g) {
        return arrives_early(g);
      });
    }
  }
  world_.show_life();
  // During a forward pass the reductions of the previous micro-batch make progress, because peers
  // wait for their buffers. In the first micro-batch only gathers of weights are pending; copying
  // them early gains nothing, because wait() copies them just before the block reads them.
  if (run.micro > 0 || is_backward(action.kind)) world_.transport().progress();
}

bool GradientReduction::arrives_early(int g) const {
  const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
  const std::vector<UseSlot>& uses = slots_[static_cast<std::size_t>(g)].uses;
  const nn::TensorParallel* const tensor = model_.tensor_parallel();
  return group.trainable && uses.size() == 1 && !group.across_stages() &&
         !uses.front().rows.enabled && !keeps_own_ && model_.context_parallel() == nullptr &&
         (tensor == nullptr || !tensor->sequence);
}

std::vector<int> GradientReduction::arriving() const {
  std::vector<std::pair<int, int>> found;  // a block, and one of its groups
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    const auto group = static_cast<int>(g);
    if (arrives_early(group)) found.emplace_back(model_.groups()[g].uses.front().block, group);
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &std::pair<int, int>::first);
  std::vector<int> out;
  for (const auto& [block, group] : found)
    out.push_back(group);
  return out;
}

void GradientReduction::tell_arrivals() {
  for (const int g : std::exchange(coming_, {})) {
    settle(slots_[static_cast<std::size_t>(g)].uses.front());
    arrived_(g);
  }
}

std::vector<GradSink*> GradientReduction::sinks_of(const BlockRun& run) const {
  std::vector<GradSink*> out;
  for (const int g : model_.groups_of(run.block)) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    for (Param* param : use_of(group, run.block, &h).params)
      out.push_back(&param->grad());
  }
  return out;
}

/// The tensor that receives this micro-batch's gradient, slice after slice.
at::Tensor GradientReduction::target(UseSlot& use, int micro) {
  if (use.pool->staging.defined()) return use.pool->staging;
  if (direct(use, micro)) return use.accumulator;
  if (use.local) return use.local->flat;
  return use.buffer->flat;
}

/// Brings the accumulator of a use into memory; allocates it if there is none.
void GradientReduction::take(const FlatGroup& group, UseSlot& use) {
  if (use.accumulator.defined()) return;
  use.squares.clear();
  if (use.resting) {
    make_room(resting_->class_of(*use.resting));
    using Use = RestingSums::Use;
    use.accumulator = resting_->hold(*use.resting, use.stored ? Use::Change : Use::Replace);
    if (!std::exchange(use.stored, true) && direct(use, 0))
      zero_gaps(use.accumulator, group.layout);
    held_.push_back(&use);
    return;
  }
  const memory::ScopedTag tag(memory::Tag::Gradients);
  use.accumulator =
      at::empty({group.layout.shard_numel()},
                at::TensorOptions().dtype(to_torch(options_.accumulate)).device(device_of(world_)));
  // If gradients are written directly into the sum, nothing writes its gaps.
  if (direct(use, 0)) zero_gaps(use.accumulator, group.layout);
}

/// The buffer into which the rows of the use's gradient are written once they are too many, or once
/// a block writes more than rows.
DenseGradient GradientReduction::dense_of(const FlatGroup& group,
                                          UseSlot& slot,
                                          const BlockRun& run) {
  return {.micro =
              [this, &group, &slot, run] {
                return view_of(open_dense(group, slot, run), group.layout.params().front());
              },
          .sum = [this, &group, &slot]() -> const at::Tensor& {
            take(group, slot);
            return slot.accumulator;
          }};
}

/// Converts the sum of the use to a whole tensor in its accumulator.
void GradientReduction::make_dense(const FlatGroup& group, UseSlot& slot) {
  if (!slot.rows.sum) return;
  take(group, slot);
  rows_.make_dense(group, slot.rows, slot.accumulator);
}

void GradientReduction::open(const BlockRun& run) {
  for (const int g : model_.groups_of(run.block)) {
    const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const BlockUse& use = use_of(group, run.block, &h);
    UseSlot& slot = slots_[static_cast<std::size_t>(g)].uses[h];
    if (takes_rows(slot, run) &&
        rows_.open(group, *use.params.front(), slot.rows, dense_of(group, slot, run), run.micro))
      continue;
    const at::Tensor flat = open_dense(group, slot, run);
    const bool holds = run.micro > 0 && locally() && !slot.pool->staging.defined();
    for (std::size_t i = 0; i < use.params.size(); ++i) {
      std::vector<at::Tensor> slices;
      for (int s = 0; s < slot.ranks->slices; ++s)
        slices.push_back(view_of(slice_of(flat, s, slot.ranks->slices), group.layout.params()[i]));
      use.params[i]->grad().open(std::move(slices), holds);
    }
  }
}

/// The tensor for the micro-batch's whole gradient.
at::Tensor GradientReduction::open_dense(const FlatGroup& group,
                                         UseSlot& slot,
                                         const BlockRun& run) {
  const bool into_sum = direct(slot, run.micro);
  // A sum that rests is read during the backward pass, or replaced after it.
  if (!slot.resting || into_sum) take(group, slot);
  if (slot.resting && slot.stored) resting_->fetch(*slot.resting);
  // The accumulator receives one micro-batch after the other.
  settle(slot);
  if (slot.local) wait_reusable(slot.local->works);
  if (!locally() && !into_sum) slot.buffer = &acquire(*slot.pool);
  at::Tensor flat = target(slot, run.micro);
  for (int s = 0; s < slot.ranks->slices && !into_sum; ++s)
    zero_gaps(slice_of(flat, s, slot.ranks->slices), group.layout);
  return flat;
}

void GradientReduction::post(const BlockRun& run) {
  for (const int g : model_.groups_of(run.block)) {
    FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    std::size_t h = 0;
    const BlockUse& use = use_of(group, run.block, &h);
    reduce(g, use, slots_[static_cast<std::size_t>(g)].uses[h], run);
  }
}

void GradientReduction::reduce(int g, const BlockUse& use, UseSlot& slot, const BlockRun& run) {
  const FlatGroup& group = model_.groups()[static_cast<std::size_t>(g)];
  if (takes_rows(slot, run) &&
      rows_.reduce(group, *use.params.front(), slot.rows, dense_of(group, slot, run), run))
    return;
  make_dense(group, slot);
  const at::Tensor& staging = slot.pool->staging;
  if (slot.local || (locally() && staging.defined())) {
    if (!slot.local) take(group, slot);
    const at::Tensor& sum = slot.local ? slot.local->flat : slot.accumulator;
    if (staging.defined()) run.micro == 0 ? sum.copy_(staging) : sum.add_(staging);
    if (!slot.local || keeps_own_ || run.micro + 1 < run.num_micros) return;
  } else if (direct(slot, run.micro)) {
    return;
  } else if (staging.defined()) {
    round_into(*slot.buffer, staging, slot.residual);
  }
  if (slot.local && narrow()) {
    slot.buffer = &acquire(*slot.pool);
    round_into(*slot.buffer, slot.local->flat, slot.residual);
  }
  Buffer& buffer = slot.buffer != nullptr ? *slot.buffer : *slot.local;
  buffer.user = &slot;
  const bool add = options_.mode == Reduction::Once && !slot.local && run.micro > 0;
  slot.add_reduced = add;
  const comm::Write write = options_.mode == Reduction::Each && run.micro > 0
                                ? comm::Write::Accumulate
                                : comm::Write::Store;
  take(group, slot);
  const at::Tensor& out = add ? buffer.reduced : slot.accumulator;
  exchange(buffer,
           out,
           write,
           TESSERA_HERE(fmt::format(
               "reduce gradients of {} micro-batch {}", group.layout.name(), run.micro)));
}

/// Sends every owner its part of every rank's gradient, and reduces it into `out`: rank after rank,
/// and slice after slice of each.
void GradientReduction::exchange(Buffer& buffer,
                                 const at::Tensor& out,
                                 comm::Write write,
                                 comm::CallSite site) {
  const comm::Group& fold = *buffer.ranks->fold;
  const int slices = buffer.ranks->slices;
  buffer.works.clear();
  if (!narrow() && slices == 1) {
    buffer.works.push_back(world_.transport().reduce_scatter(
        fold, span_of(buffer.flat), span_of(out), comm::Op::Sum, write, std::move(site)));
    return;
  }
  buffer.target = out;
  buffer.stores = write == comm::Write::Store;
  if (fold.size() == 1) return reduce_received(buffer);
  for (int s = 0; s < slices; ++s) {
    buffer.works.push_back(
        world_.transport().all_to_all(fold,
                                      span_of(slice_of(buffer.flat, s, slices)),
                                      span_of(slice_of(buffer.received, s, slices)),
                                      site));
  }
}

/// Writes the gradient as it is sent.
void GradientReduction::round_into(Buffer& buffer,
                                   const at::Tensor& gradient,
                                   const at::Tensor& residual) const {
  if (!options_.in_codes()) {
    buffer.flat.copy_(gradient);
    return;
  }
  const bool feeds = residual.defined() && feeds_back_;
  const std::int64_t parts = buffer.ranks->inputs();  // of every slice, one for each owner
  const std::int64_t part = gradient.numel() / parts, bytes = byte_codes(part);
  for (std::int64_t owner = 0; owner < parts; ++owner) {
    const at::Tensor own = gradient.narrow(0, owner * part, part);
    const at::Tensor codes = buffer.flat.narrow(0, owner * bytes, bytes);
    if (feeds) {
      encode_bytes(own,
                   codes,
                   residual.narrow(0, owner * part, part),
                   {.beta = static_cast<float>(options_.feedback->beta),
                    .scale = static_cast<float>(feedback_scale_)});
    } else {
      encode_bytes(own, codes);
    }
  }
}

/// Adds the parts of all ranks to the sum, in the order of the micro-batches; narrow ones are
/// widened.
void GradientReduction::reduce_received(Buffer& buffer) const {
  if (!buffer.target.defined()) return;
  const at::Tensor out = std::exchange(buffer.target, at::Tensor());
  const int ranks = buffer.ranks->fold->size(), slices = buffer.ranks->slices;
  const at::Tensor& all = ranks == 1 ? buffer.flat : buffer.received;
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int s = 0; s < slices; ++s)
      parts.push_back(slice_of(slice_of(all, s, slices), rank, ranks));
  }
  if (!narrow()) return add_in_order(out, parts, buffer.stores);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    const bool first = i == 0 && buffer.stores;
    if (options_.in_codes()) {
      first ? decode_bytes(part, out) : add_bytes(part, out);
    } else {
      first ? out.copy_(part) : out.add_(part);
    }
  }
}

void GradientReduction::begin(std::span<const Action> actions) {
  search_.clear();
  coming_.clear();
  const bool makes = std::any_of(actions.begin(), actions.end(), [](const Action& action) {
    return makes_gradients(action.kind);
  });
  if (!makes) return;
  // Until a block runs its backward, activations may use the memory of its sum.
  held_.clear();
  for (Slot& slot : slots_) {
    for (UseSlot& use : slot.uses) {
      if (!use.in_local()) use.accumulator.reset();
      use.rows.clear();
      use.squares.clear();
      use.stored = false;
    }
  }
}

at::Tensor GradientReduction::gather(int g) {
  UseSlot& use = slots_[static_cast<std::size_t>(g)].uses.front();
  const GroupRanks& ranks = *use.ranks;
  if (ranks.fold->size() == 1) return shard(g);
  // Sums do not fit into the narrow dtype; the staging memory of the sinks is free now.
  const bool apart = narrow() && !use.local;
  Buffer& buffer = use.local ? *use.local : acquire(*use.pool);
  wait_reusable(buffer.works);
  const at::Tensor flat = slice_of(apart ? use.pool->staging : buffer.flat, 0, ranks.slices);
  const std::int64_t shard = use.accumulator.numel();
  const at::Tensor mine = flat.narrow(0, ranks.fold->index * shard, shard);
  if (!use.in_local()) mine.copy_(use.accumulator);
  buffer.works.push_back(
      world_.transport().all_gather(*ranks.fold,
                                    span_of(mine),
                                    span_of(flat),
                                    TESSERA_HERE(fmt::format("gather gradients {}", g))));
  buffer.works.back()->wait();
  return flat.to(at::kFloat);
}

}  // namespace tessera::parallel
