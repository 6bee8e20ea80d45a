// SPDX-License-Identifier: Apache-2.0
// Whether a test that needs a terminal can run.
#pragma once

#include <cstdlib>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace tessera::test {

/// True if a pseudo-terminal can be opened: not where /dev/pts is missing, as in some containers.
inline bool terminals_can_be_opened() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0) return false;
  int terminal = -1;
  if (::grantpt(master) == 0 && ::unlockpt(master) == 0)
    terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal >= 0) ::close(terminal);
  ::close(master);
  return terminal >= 0;
}

}  // namespace tessera::test

/// Skips the rest of a test, with the reason, where no terminal can be opened.
#define TESSERA_SKIP_WITHOUT_A_TERMINAL()          \
  if (!::tessera::test::terminals_can_be_opened()) \
  GTEST_SKIP() << "no terminal can be opened here: /dev/pts is missing or full"
