// SPDX-License-Identifier: Apache-2.0
#include "tessera/transports/nccl_watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <c10/core/Event.h>

#include "tessera/base/text.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/watchdog.h"

namespace tessera::transports {
namespace {

constexpr double kMostBetweenLooks = 0.1;  // seconds

/// False while it cannot be asked: the device has failed, and whoever waits for it reports that.
bool complete(const c10::Event& event) {
  try {
    return event.query();
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

struct NcclWatch::State {
  struct Operation {
    std::string what;
    std::vector<int> others;
    std::shared_ptr<c10::Event> ready, done;  ///< absent until it is posted
    std::optional<comm::Watchdog> watchdog;
    double waited_s = 0;  ///< without a control page
  };

  State(int of_rank, ControlPage* page, std::function<void()> abort)
      : rank(of_rank), control(page), abort_all(std::move(abort)) {}

  int rank;
  ControlPage* control;
  std::function<void()> abort_all;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<const void*, std::deque<Operation>> lanes;
  double limit_s = comm::kStallLimit;
  std::optional<Error> failure;
  bool ends = false;
  std::thread thread;

  void run();
  bool stalled(Operation& operation, double passed_s);
  [[nodiscard]] Error stall_of(const Operation& operation) const;
};

void NcclWatch::State::run() {
  std::unique_lock lock(mutex);
  double passed_s = 0;
  while (!ends) {
    std::optional<Error> found;
    for (auto& [lane, operations] : lanes) {
      while (!operations.empty() && operations.front().done && complete(*operations.front().done))
        operations.pop_front();
      if (!operations.empty() && stalled(operations.front(), passed_s))
        found = stall_of(operations.front());
    }
    if (found && control != nullptr) comm::abort_world(*control, rank, *found);
    const bool broken = found || (control != nullptr && control->aborted.load() != 0);
    if (broken) {
      failure = found ? *found : Error(Error::Kind::Comm, "another rank has failed", "");
      lock.unlock();
      abort_all();
      return;
    }
    passed_s = std::min(kMostBetweenLooks, limit_s / 4);
    changed.wait_for(lock, std::chrono::duration<double>(passed_s), [&] { return ends; });
  }
}

bool NcclWatch::State::stalled(Operation& operation, double passed_s) {
  if (operation.ready && !complete(*operation.ready)) {
    operation.watchdog.reset();
    operation.waited_s = 0;
    return false;
  }
  if (control == nullptr) {
    operation.waited_s += passed_s;
    return operation.waited_s > limit_s;
  }
  if (!operation.watchdog) operation.watchdog.emplace(*control, limit_s);
  return operation.watchdog->stalled(operation.others);
}

Error NcclWatch::State::stall_of(const Operation& operation) const {
  std::vector<std::string> ranks;
  for (const int other : operation.others)
    ranks.push_back(control != nullptr ? comm::describe(*control, other)
                                       : fmt::format("rank {}", other));
  return {Error::Kind::Comm,
          fmt::format("rank {} has waited {} s on its device in NCCL's {} for {}",
                      rank,
                      limit_s,
                      operation.what,
                      text::join_some(ranks, " and ")),
          "see the logs of the other ranks, and NCCL's own with NCCL_DEBUG=WARN"};
}

NcclWatch::NcclWatch(int rank, ControlPage* control, std::function<void()> abort_all)
    : state_(std::make_unique<State>(rank, control, std::move(abort_all))) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void NcclWatch::begin(const void* lane, std::string operation, std::vector<int> others) {
  if (state_->control != nullptr)
    comm::publish_operation(*state_->control, state_->rank, operation);
  const std::lock_guard lock(state_->mutex);
  State::Operation one;
  one.what = std::move(operation);
  one.others = std::move(others);
  state_->lanes[lane].push_back(std::move(one));
}

void NcclWatch::posted(const void* lane,
                       std::shared_ptr<c10::Event> ready,
                       std::shared_ptr<c10::Event> done) {
  const std::lock_guard lock(state_->mutex);
  State::Operation& one = state_->lanes.at(lane).back();
  one.ready = std::move(ready);
  one.done = std::move(done);
}

void NcclWatch::throw_if_broken() const {
  if (state_->control != nullptr) comm::throw_if_aborted(*state_->control);
  const std::lock_guard lock(state_->mutex);
  if (state_->failure) throw Error(*state_->failure);
}

void NcclWatch::set_limit(double seconds) {
  const std::lock_guard lock(state_->mutex);
  state_->limit_s = seconds;
}

}  // namespace tessera::transports
