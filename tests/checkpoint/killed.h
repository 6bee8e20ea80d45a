// SPDX-License-Identifier: Apache-2.0
// Processes that are killed during changes to a disk.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/storage_fakes.h"
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::checkpoint::test {

/// Runs `work` in a child process that kills itself with SIGKILL before its `n`-th change. Returns
/// whether it was killed.
inline bool killed_at(int n, bool can_exchange, const std::function<void(Storage&)>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    int left = n;
    WatchedStorage disk(
        [&](const std::string&, const fs::path&) {
          if (left-- == 0) ::kill(::getpid(), SIGKILL);
        },
        can_exchange);
    int code = 0;
    try {
      work(disk);
    } catch (...) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

}  // namespace tessera::checkpoint::test
