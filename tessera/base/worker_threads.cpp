// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/worker_threads.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

void on_threads(int threads,
                const std::function<void(bool is_caller, const std::atomic<bool>& failed)>& work) {
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto guarded = [&](bool is_caller) noexcept {
    try {
      work(is_caller, failed);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      failed = true;
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i)
        others.emplace_back(guarded, false);
    } catch (const std::exception&) {
      // No thread or no memory is available: the running threads do all the work.
    }
    guarded(true);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
