// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/kernel_threads.h"

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <thread>

#include <omp.h>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

/// The number of threads of this process; 0 if /proc does not say it.
std::size_t count_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  if (error) return 0;
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

void require_no_kernel_threads() {
  using std::chrono::milliseconds;
  const std::size_t before = count_threads();
  if (before <= 1) return;
  omp_pause_resource_all(omp_pause_hard);
  // The kernel may list a thread for a moment after it was joined.
  for (int waited = 0; waited < 50; ++waited) {
    if (count_threads() < before) {
      throw Error(Error::Kind::Config,
                  "an ATen operation has started worker threads in this process before its ranks; "
                  "ranks that are forked from it would wait for these threads forever",
                  "start the ranks before the first ATen operation, or call at::set_num_threads(1) "
                  "at the beginning of main(), or run that operation in a process of its own");
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace tessera::engine
