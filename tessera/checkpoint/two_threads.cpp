// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/two_threads.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include <signal.h>

namespace tessera::checkpoint {
namespace {

/// A thread without signals: those of the process are for the thread that made it.
std::thread quiet_thread(const std::function<void()>& work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread out;
  try {
    out = std::thread(work);
  } catch (const std::system_error&) {
    // This thread does all of it.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return out;
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
  if (count > 1) second = quiet_thread(take);
  take();
  if (second.joinable()) second.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera::checkpoint
