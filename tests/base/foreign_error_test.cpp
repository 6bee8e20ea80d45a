// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/foreign_error.h"

#include <new>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// Messages of libtorch and of the standard library that mean a limit, not a bug.
TEST(ForeignErrors, AreOfMemoryIfMemoryOrThreadsRanOut) {
  const auto code_of = [](const std::string& what) {
    return exit_code(foreign_error(what).kind());
  };
  const std::string torch =
      "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you "
      "tried to allocate 4000000000 bytes. Error code 12 (Cannot allocate memory)";
  const std::system_error thread(std::make_error_code(std::errc::resource_unavailable_try_again));

  EXPECT_EQ(code_of(torch), 5);
  EXPECT_EQ(code_of(std::bad_alloc().what()), 5);
  EXPECT_EQ(code_of(thread.what()), 5);
  EXPECT_FALSE(foreign_error(torch).fix().empty());
  EXPECT_EQ(code_of("mat1 and mat2 shapes cannot be multiplied"), 70);
}

}  // namespace
}  // namespace tessera
