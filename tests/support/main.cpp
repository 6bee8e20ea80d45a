// SPDX-License-Identifier: Apache-2.0
// A filter that selects nothing must fail: an entry of ctest that runs no test proves nothing.
#include <cstdio>

#include "support/source_dir.h"
#include <gtest/gtest.h>

namespace tessera::test {

std::filesystem::path source_dir() {
  return TESSERA_SOURCE_DIR;
}

}  // namespace tessera::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const int failed = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fputs("no test was selected\n", stderr);
    return 1;
  }
  return failed;
}
