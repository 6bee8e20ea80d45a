// SPDX-License-Identifier: Apache-2.0
// Which GPUs of a described host a process uses, and the sentence if it uses none.
#include "tessera/memory/nvidia.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::memory {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A host with three GPUs.
NvidiaHost three() {
  const auto gpu = [](const char* name, const char* uuid) {
    return NvidiaGpu{.name = name,
                     .uuid = uuid,
                     .bytes = std::int64_t{80} << 30,
                     .used = std::int64_t{1} << 30,
                     .major = 9};
  };
  return {.driver = "580.65.06",
          .cuda = 13000,
          .gpus = {gpu("A", "GPU-aaaa-1"), gpu("B", "GPU-bbbb-2"), gpu("C", "GPU-cccc-3")}};
}

std::vector<std::string> names(const NvidiaChoice& choice) {
  std::vector<std::string> out;
  for (const DeviceInfo& device : choice.devices)
    out.push_back(device.name + std::to_string(device.index));
  return out;
}

TEST(NvidiaGpus, AreTheVisibleOnesInTheirOrder) {
  const NvidiaHost host = three();
  EXPECT_THAT(names(choose_gpus(host, nullptr, "")), ElementsAre("A0", "B1", "C2"));
  EXPECT_THAT(names(choose_gpus(host, "2,0", "")), ElementsAre("C0", "A1"));
  EXPECT_THAT(names(choose_gpus(host, " GPU-bbbb , 2", "")), ElementsAre("B0", "C1"));
  // The list ends at an entry that names no GPU, or one again.
  EXPECT_THAT(names(choose_gpus(host, "1,7,0", "")), ElementsAre("B0"));
  EXPECT_THAT(names(choose_gpus(host, "1,1,0", "")), ElementsAre("B0"));
  EXPECT_THAT(names(choose_gpus(host, "1,-1,0", "")), ElementsAre("B0"));
}

TEST(NvidiaGpus, AreNotUsedForOneReasonInOneSentence) {
  const auto expect_none =
      [](const NvidiaHost& host, const char* visible, const std::string& library, const char* why) {
        const NvidiaChoice choice = choose_gpus(host, visible, library);
        EXPECT_THAT(choice.devices, IsEmpty()) << why;
        EXPECT_THAT(choice.why_not, HasSubstr(why));
      };
  NvidiaHost none = three(), old = three(), small = three(), silent;
  none.gpus.clear();
  old.cuda = 12040;
  old.driver = "550.1";
  small.gpus[1].major = 7;
  small.gpus[1].minor = 0;
  silent.failure = "no driver of NVIDIA is installed";

  expect_none(silent, nullptr, "", "no driver");
  expect_none(none, nullptr, "", "finds no GPU");
  expect_none(three(), "", "", "hides all of its 3 GPUs");
  expect_none(three(), "-1", "", "hides all of its 3 GPUs");
  expect_none(old, nullptr, "", "550.1 supports CUDA 12.4, and this build needs 13.0");
  expect_none(small, nullptr, "", "B has the compute capability 7.0");
  expect_none(three(), nullptr, "the library is missing", "the library is missing");
  EXPECT_THAT(names(choose_gpus(small, "0,2", "")), ElementsAre("A0", "C1"));
}

TEST(NvidiaGpus, SayWhoUsesTheirMemory) {
  NvidiaHost host = three();
  EXPECT_EQ(busy_note(host, nullptr, 2), "");
  host.gpus[2].used = std::int64_t{70} << 30;
  host.gpus[2].used_by = {"process 12 (python)"};
  EXPECT_THAT(busy_note(host, nullptr, 2), HasSubstr("in use by process 12 (python)"));
  EXPECT_THAT(busy_note(host, "0,2", 1), HasSubstr("cuda:1 (C)"));
  EXPECT_EQ(busy_note(host, "0,2", 2), "");
}

// The library of the driver is asked by names and numbers, whose meaning only a driver proves; what
// a host without one says is known.
TEST(NvidiaDriver, IsMissedInOneSentence) {
  setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so", 1);
  const NvidiaHost host = ask_nvidia_driver();
  unsetenv("TESSERA_NVML");
  EXPECT_THAT(host.failure, HasSubstr("no driver of NVIDIA is installed"));
  EXPECT_THAT(host.gpus, IsEmpty());
}

TEST(Nvidia, NamesTheSettingsOfNcclInTheEnvironment) {
  setenv("NCCL_TREE_THRESHOLD", "0", /*overwrite=*/1);
  EXPECT_THAT(nccl_settings(), testing::Contains("NCCL_TREE_THRESHOLD=0"));
  unsetenv("NCCL_TREE_THRESHOLD");
  EXPECT_THAT(nccl_settings(), testing::Not(testing::Contains("NCCL_TREE_THRESHOLD=0")));
}

}  // namespace
}  // namespace tessera::memory
