// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/two_threads.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "tessera/base/quiet_thread.h"

namespace tessera::checkpoint {
namespace {

/// Returns a non-running thread if none can be created: this thread then does all the work.
std::thread helper(const std::function<void()>& work) {
  try {
    return quiet_thread(work);
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace

void on_two_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::size_t where = count;
  std::exception_ptr failure;
  const auto take = [&] {
    while (!failed) {
      const std::size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = true;
        if (i < where) {
          where = i;
          failure = std::current_exception();
        }
      }
    }
  };
  std::thread second;
  if (count > 1) second = helper(take);
  take();
  if (second.joinable()) second.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera::checkpoint
