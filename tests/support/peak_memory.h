// SPDX-License-Identifier: Apache-2.0
// The memory that a piece of work adds to a process, including pages of mapped files.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::test {

/// A line of /proc/self/status, in bytes.
inline std::int64_t memory_line(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return -1;
}

/// Runs `work` in a child process and returns by how many bytes its memory grew at most; -1 if
/// `work` returned false or threw.
inline std::int64_t peak_growth(const std::function<bool()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    std::int64_t grown = -1;
    try {
      // Otherwise the child would reuse memory that the parent freed, and it would not be counted.
      ::malloc_trim(0);
      std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
      const std::int64_t before = memory_line("VmRSS");
      if (work()) grown = memory_line("VmHWM") - before;
    } catch (...) {
      grown = -1;  // the parent expects a number
    }
    const bool told = ::write(ends[1], &grown, sizeof(grown)) == sizeof(grown);
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  std::int64_t grown = -1;
  if (child < 0 || ::read(ends[0], &grown, sizeof(grown)) != sizeof(grown)) grown = -1;
  ::close(ends[0]);
  int status = 0;
  if (child > 0) ::waitpid(child, &status, 0);
  return grown;
}

}  // namespace tessera::test
