// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/stall_watch.h"

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(StallWatch, ReportsAProcessThatWaitsOnce) {
  std::promise<std::string> told;
  std::atomic<int> times = 0;
  std::string text;
  {
    const StallWatch watch(
        "reading the data",
        [&](const std::string& said) {
          if (++times == 1) told.set_value(said);
        },
        0.05);
    text = told.get_future().get();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }

  EXPECT_EQ(text, "reading the data has made no progress for 0.05 s");
  EXPECT_EQ(times, 1);
}

TEST(StallWatch, EndsAtOnceWithItsScope) {
  constexpr double kAnHour = 3600.0;
  const StallWatch watch(
      "reading the data", [](const std::string&) { FAIL(); }, kAnHour);
}

}  // namespace
}  // namespace tessera
