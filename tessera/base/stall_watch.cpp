// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/stall_watch.h"

#include <chrono>
#include <ctime>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/quiet_thread.h"

namespace tessera {
namespace {

double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace

StallWatch::StallWatch(std::string what,
                       std::function<void(const std::string& text)> tell,
                       double after_s)
    : what_(std::move(what)), tell_(std::move(tell)), after_s_(after_s) {
  try {
    thread_ = quiet_thread([this] { watch(); });
  } catch (const std::system_error&) {
    return;
  }
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StallWatch::watch() {
  constexpr double kBusy = 0.01;
  std::unique_lock lock(mutex_);
  for (;;) {
    const double before = processor_seconds();
    if (ended_.wait_for(lock, std::chrono::duration<double>(after_s_), [this] { return end_; }))
      return;
    if (processor_seconds() - before < kBusy * after_s_) break;
  }
  tell_(fmt::format("{} has made no progress for {:.3g} s", what_, after_s_));
}

}  // namespace tessera
