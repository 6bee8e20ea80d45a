// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/early_updates.h"

#include <algorithm>
#include <bitset>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/planned_buffers.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

/// Steps that decide whether the assumption is worth its work.
constexpr std::size_t kRemembered = 16;

}  // namespace

struct EarlyUpdates::State {
  /// The second set of a unit.
  struct Fresh {
    ShardStore::Values values;
    at::Tensor working;  ///< the weights rounded to 16 bits, in plain memory; undefined for fp32
  };

  /// The update of a group, by copies of handles that only the thread uses until it is done.
  struct Job {
    std::size_t group = 0;
    at::Tensor landing;  ///< the whole pinned buffer
    c10::Event arrived;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  ///< old values, and their second set
    std::vector<std::pair<optim::ShardView, optim::UpdateScalars>> updates;
  };

  State(const UpdateContext& of, ShardStore& into)
      : context(of), store(into), device(of.model.device()), guard(device.type()) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    {
      const std::lock_guard lock(mutex);
      jobs.clear();
      ends = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  Fresh& fresh_of(std::size_t unit);
  void start_thread();
  void work();
  void run(Job& job) const;
  /// Waits until no update runs. `drop`: what has not begun will not.
  void wait(bool drop);

  UpdateContext context;
  ShardStore& store;
  c10::Device device;
  c10::impl::VirtualGuardImpl guard;
  std::optional<c10::Stream> stream;            ///< of the copies
  std::map<std::size_t, Fresh> fresh;           ///< by unit
  std::optional<optim::UpdateScalars> assumed;  ///< of a step in which updates begin early
  bool right = false;                           ///< of the last step, after settle()
  std::bitset<kRemembered> wrong;               ///< of the last steps, the newest one first
  optim::UpdateScalars expected;                ///< of the step, also if nothing begins early
  EarlyCounts counts;
  std::int64_t begun = 0;  ///< groups of the step

  std::thread thread;
  std::mutex mutex;  ///< protects what follows
  std::condition_variable changed;
  std::deque<Job> jobs;
  std::vector<at::Tensor> landings;  ///< those that no job uses
  bool allocated = false, busy = false, ends = false;
  std::set<std::size_t> done;  ///< groups of the step
  std::exception_ptr error;
};

/// Returns the second set of a unit, whose values are arbitrary.
EarlyUpdates::State::Fresh& EarlyUpdates::State::fresh_of(std::size_t unit) {
  const auto found = fresh.find(unit);
  if (found != fresh.end()) return found->second;
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  Fresh made;
  const ShardStore::Values old = store.values(unit);
  const auto like = [](const KeptState& kept) {
    return KeptState::over(at::empty_like(kept.stored()));
  };
  made.values.masters = like(old.masters);
  for (const KeptState& state : old.states)
    made.values.states.push_back(like(state));
  // Gaps between parameters are sent too.
  const DType working = context.model.working();
  if (working != DType::F32) made.working = at::zeros({old.masters.numel()}, to_torch(working));
  return fresh.emplace(unit, std::move(made)).first->second;
}

void EarlyUpdates::State::start_thread() {
  if (thread.joinable()) return;
  thread = std::thread([this, threads = at::get_num_threads()] {
    at::set_num_threads(threads);
    guard.setDevice(device);
    work();
  });
}

void EarlyUpdates::State::work() {
  for (;;) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return ends || !jobs.empty(); });
    if (ends) return;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    busy = true;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      run(job);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    busy = false;
    if (thrown == nullptr) done.insert(job.group);
    if (error == nullptr) error = thrown;
    landings.push_back(std::move(job.landing));
    lock.unlock();
    changed.notify_all();
  }
}

void EarlyUpdates::State::run(Job& job) const {
  job.arrived.synchronize();
  for (const auto& [old, copy] : job.copies)
    copy.copy_(old);
  for (const auto& [view, scalars] : job.updates)
    context.rule.update(view, scalars);
}

void EarlyUpdates::State::wait(bool drop) {
  std::unique_lock lock(mutex);
  if (drop) {
    for (Job& job : jobs) {
      job.arrived.synchronize();  // the copy still writes the landing
      landings.push_back(std::move(job.landing));
    }
    jobs.clear();
  }
  changed.wait(lock, [this] { return jobs.empty() && !busy; });
}

EarlyUpdates::EarlyUpdates(const UpdateContext& context, ShardStore& store)
    : state_(std::make_unique<State>(context, store)) {
  TESSERA_ASSERT(store.on_host() && store.options().place.tier == nullptr);
}

EarlyUpdates::~EarlyUpdates() = default;

bool EarlyUpdates::supports(std::size_t g) const {
  const ShardStore& store = state_->store;
  const FlatGroup& group = state_->context.model.groups()[g];
  if (!group.trainable || !group.weights->own().defined() || group.weights->own().is_cpu())
    return false;
  const auto [first, last] = store.units_of(g);
  for (std::size_t u = first; u < last; ++u) {
    const ShardStore::Values values = state_->store.values(u);
    const bool wide = values.masters.defined() && values.masters.wide() &&
                      std::ranges::all_of(values.states, &KeptState::wide);
    if (!wide) return false;
  }
  return true;
}

void EarlyUpdates::begin(const optim::UpdateScalars& assumed) {
  State& all = *state_;
  all.wait(/*drop=*/true);  // of a step that an error ended
  const std::lock_guard lock(all.mutex);
  all.error = nullptr;
  all.done.clear();
  all.counts = {};
  all.begun = 0;
  all.right = false;
  all.expected = assumed;
  all.assumed.reset();
  if (2 * all.wrong.count() <= kRemembered) all.assumed = assumed;
}

void EarlyUpdates::take(std::size_t g, const at::Tensor& gradient) {
  State& all = *state_;
  if (!all.assumed || !gradient.defined() || !supports(g)) return;
  at::Tensor landing;
  {
    const std::lock_guard lock(all.mutex);
    if (!std::exchange(all.allocated, true)) {
      std::int64_t largest = 0;
      for (std::size_t i = 0; i < all.store.num_groups(); ++i) {
        const auto [first, last] = all.store.units_of(i);
        if (!supports(i)) continue;
        std::int64_t numel = 0;
        for (std::size_t u = first; u < last; ++u)
          numel += all.store.units()[u].numel;
        largest = std::max(largest, numel);
      }
      for (int i = 0; i < kLandings; ++i)
        all.landings.push_back(landing_room(largest, at::kFloat, all.device));
    }
    if (all.landings.empty()) return;
    landing = std::move(all.landings.back());
    all.landings.pop_back();
  }
  if (!all.stream) all.stream = all.guard.getStreamFromGlobalPool(all.device);
  c10::Event complete(all.device.type());
  complete.record(all.guard.getStream(all.device));
  complete.block(*all.stream);
  State::Job job{g, landing, c10::Event(all.device.type()), {}, {}};
  {
    const c10::StreamGuard guard(*all.stream);
    landing.narrow(0, 0, gradient.numel()).copy_(gradient, /*non_blocking=*/true);
    gradient.record_stream(*all.stream);  // it may be a copy in fp32
    job.arrived.record(*all.stream);
  }
  const auto [first, last] = all.store.units_of(g);
  for (std::size_t u = first; u < last; ++u) {
    const State::Fresh& fresh = all.fresh_of(u);
    const ShardStore::Values old = all.store.values(u);
    job.copies.emplace_back(old.masters.stored(), fresh.values.masters.stored());
    for (std::size_t s = 0; s < old.states.size(); ++s)
      job.copies.emplace_back(old.states[s].stored(), fresh.values.states[s].stored());
    const ShardStore::Lease lease = all.store.acquire(u, Access::Read);
    std::size_t state = 0;
    for (ParamShard& shard : lease.shards()) {
      const std::int64_t at = shard.at - all.store.units()[u].begin;
      optim::ShardView view = lease.view(shard, landing.const_data_ptr<float>() + shard.at);
      view.master = fresh.values.masters.floats() + at;
      if (fresh.working.defined())
        view.working = static_cast<std::uint16_t*>(fresh.working.data_ptr()) + at;
      for (float*& values : view.state)
        values = fresh.values.states[state++].floats();
      job.updates.emplace_back(
          std::move(view),
          all.store.beginnings().scalars_of(shard.segment->info->name, *all.assumed));
    }
  }
  all.start_thread();
  ++all.begun;
  {
    const std::lock_guard lock(all.mutex);
    all.jobs.push_back(std::move(job));
  }
  all.changed.notify_all();
}

void EarlyUpdates::settle(const std::optional<optim::UpdateScalars>& scalars) {
  State& all = *state_;
  all.right = scalars == all.expected;
  all.wait(/*drop=*/!all.right);
  all.wrong <<= 1U;
  all.wrong[0] = !all.right;
  const std::lock_guard lock(all.mutex);
  if (all.error != nullptr) std::rethrow_exception(std::exchange(all.error, nullptr));
  (all.right ? all.counts.committed : all.counts.repeated) = all.begun;
  if (!all.right) all.done.clear();
  all.assumed.reset();
}

bool EarlyUpdates::has(std::size_t group) const {
  const std::lock_guard lock(state_->mutex);
  return state_->right && state_->done.contains(group);
}

void EarlyUpdates::commit(std::size_t unit) {
  State& all = *state_;
  State::Fresh& fresh = all.fresh_of(unit);
  all.store.exchange_values(unit, fresh.values);
  ShardStore::Lease lease = all.store.acquire(unit, Access::Write);
  lease.send(fresh.working.defined() ? fresh.working : all.store.values(unit).masters.stored());
}

void EarlyUpdates::forget() {
  State& all = *state_;
  all.wait(/*drop=*/true);
  all.fresh.clear();
  const std::lock_guard lock(all.mutex);
  all.done.clear();
  all.assumed.reset();
  all.landings.clear();
  all.allocated = false;
}

const EarlyCounts& EarlyUpdates::counts() const {
  return state_->counts;
}

std::int64_t early_update_bytes(const PlannedStage& stage, DType working, std::int64_t states) {
  const std::int64_t each = working == DType::F32 ? 4 : 6;  // masters, and weights of 16 bits
  std::int64_t weights = 0, largest = 0;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (!buffer.group.trainable) continue;
    largest = std::max(largest, buffer.owned.numel);
    weights += each * buffer.owned.numel;
  }
  return states + weights + EarlyUpdates::kLandings * 4 * largest;
}

}  // namespace tessera::parallel
