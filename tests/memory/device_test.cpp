// SPDX-License-Identifier: Apache-2.0
// Which device a rank gets.
#include "tessera/memory/device.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"

namespace tessera::memory {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Devices 0, 2 and 3 of a host; a test can take them away.
bool there = true;
std::vector<DeviceInfo> simulated_found() {
  if (!there) return {};
  return {{0, "simulated", 1 << 20}, {2, "simulated", 1 << 20}, {3, "simulated", 1 << 20}};
}
TESSERA_DEVICE("simulated",
               {.kind = DeviceKind::Plugin,
                .found = simulated_found,
                .why_not = [] { return std::string(there ? "" : "its driver is missing"); },
                .enter = [](Device) {},
                .use = [](Device) { return DeviceUse{}; }});

TEST(DeviceOfRank, IsOneForAllRanksOnTheCpu) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(device_of_rank("cpu", rank, 8), (Device{DeviceKind::Cpu, 0}));
}

TEST(DeviceOfRank, IsAnotherForEveryRank) {
  for (const char* asked : {"simulated", "auto"}) {
    EXPECT_EQ(device_of_rank(asked, 0, 3), (Device{DeviceKind::Plugin, 0})) << asked;
    EXPECT_EQ(device_of_rank(asked, 1, 3), (Device{DeviceKind::Plugin, 2})) << asked;
    EXPECT_EQ(device_of_rank(asked, 2, 3), (Device{DeviceKind::Plugin, 3})) << asked;
  }
  EXPECT_EQ(device_of_rank("simulated:3,0", 0, 2), (Device{DeviceKind::Plugin, 3}));
  EXPECT_EQ(device_of_rank("simulated:3,0", 1, 2), (Device{DeviceKind::Plugin, 0}));
}

void expect_error(const char* asked, int ranks, Error::Kind kind, const char* what) {
  try {
    (void)device_of_rank(asked, 0, ranks);
    ADD_FAILURE() << asked << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << asked;
    EXPECT_THAT(error.what(), HasSubstr(what)) << asked;
  }
}

TEST(DeviceOfRank, RefusesWhatTheHostDoesNotHave) {
  expect_error("simulated", 4, Error::Kind::Environment, "4 ranks on this host, but 3 devices");
  expect_error("simulated:0", 2, Error::Kind::Environment, "2 ranks on this host, but 1 devices");
  expect_error("simulated:1", 1, Error::Kind::Environment, "no device simulated:1");
  for (const char* list :
       {"simulated:", "simulated:0,", "simulated:0,0", "simulated:-1", "simulated:a"})
    expect_error(list, 1, Error::Kind::Config, "is not a list of different indices");
  expect_error("simulate", 1, Error::Kind::Config, "unknown device");
  there = false;
  expect_error("simulated", 1, Error::Kind::Environment, "its driver is missing");
  EXPECT_EQ(device_of_rank("auto", 0, 1), (Device{DeviceKind::Cpu, 0}));
  there = true;
}

TEST(Devices, CountTheMemoryOfTheCpuByTheLedger) {
  Ledger ledger;
  const ScopedLedger scoped(ledger);
  ledger.add(Tag::Other, 100);
  ledger.add(Tag::Other, -40);
  const DeviceUse use = device_entry(DeviceKind::Cpu).use({});
  EXPECT_EQ(use.current, 60);
  EXPECT_EQ(use.peak, 100);
  EXPECT_GT(device_entry(DeviceKind::Cpu).found().at(0).bytes, 0);
}

}  // namespace
}  // namespace tessera::memory
