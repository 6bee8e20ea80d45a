// SPDX-License-Identifier: Apache-2.0
// Plugins that are missing or broken, devices that fail in their trial, and the sentence for each.
#include "tessera/memory/device_plugin.h"

#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/memory/device_trial.h"
#include "tessera/memory/nvidia.h"

namespace tessera::memory {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <class Fn>
std::string words_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Environment);
    EXPECT_FALSE(error.fix().empty());
    return error.text();
  }
  return "";
}

TEST(DevicePlugin, IsRefusedIfItIsMissingOrNone) {
  const files::TempDir folder;
  const auto open = [&](const std::filesystem::path& path) {
    return words_of([&] { open_device_plugin(path); });
  };
  EXPECT_THAT(open(folder.path() / "nothing.so"),
              AllOf(HasSubstr("nothing.so is missing"), HasSubstr("tools/build.sh release")));
  files::write_atomic(folder.path() / "text.so", "not a library");
  EXPECT_THAT(open(folder.path() / "text.so"), HasSubstr("cannot be loaded"));
  EXPECT_THAT(open("/lib/x86_64-linux-gnu/libm.so.6"), HasSubstr("it is not a plugin of tessera"));
}

// ---- the trial of devices: each index of the kind "trial" behaves in another way

enum Behaviour { Works, Throws, Crashes, Hangs };

void try_out(Device device) {
  if (device.index == Throws)
    throw Error(Error::Kind::Environment, "the device is full", "end others");
  if (device.index == Crashes) raise(SIGKILL);
  if (device.index == Hangs) pause();
}

TESSERA_DEVICE("trial",
               {.kind = DeviceKind::Meta,
                .found = [] { return std::vector<DeviceInfo>(); },
                .why_not = [] { return std::string("it is a test"); },
                .enter = [](Device) {},
                .try_out = try_out});

TEST(DeviceTrial, SaysHowADeviceFailsWithoutHarmToTheProcess) {
  const auto attempt = [](int index, double limit_s = 60.0) {
    return words_of([&] { try_devices({{DeviceKind::Meta, index}}, limit_s); });
  };
  EXPECT_EQ(attempt(Works), "");
  EXPECT_EQ(attempt(Throws), "the device is full\n  fix: end others");
  EXPECT_THAT(attempt(Crashes), HasSubstr("end the process that loads them (signal 9)"));
  EXPECT_THAT(attempt(Hangs, 0.2), HasSubstr("does not answer within"));
  EXPECT_EQ(words_of([] { try_devices({Device{}}); }), "") << "the CPU needs no trial";
}

TEST(NvidiaFailures, AreExplainedInOneSentenceWithARemedy) {
  struct Case {
    const char *words, *what, *fix;
  };
  for (const Case& c :
       {Case{"CUDA out of memory. Tried to allocate 64.00 MiB.",
             "cuda:0 (H) has no free memory: 70 GiB by process 7",
             "end the processes that use it"},
        Case{"CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors",
             "another process uses it alone",
             "compute-mode=0"},
        Case{"CUDA error: no kernel image is available for execution on the device",
             "an architecture for which the CUDA libraries have no kernels",
             "8.0 or newer"},
        Case{"CUDA driver version is insufficient for CUDA runtime version",
             "the driver is older",
             "install the driver 580"},
        Case{"CUDA error: uncorrectable ECC error encountered\nmore",
             "cannot be used: CUDA error: uncorrectable ECC error encountered",
             "nvidia-smi"}}) {
    const NvidiaFailure failure = explain_failure(c.words, "cuda:0 (H)", "70 GiB by process 7");
    EXPECT_THAT(failure.what, HasSubstr(c.what));
    EXPECT_THAT(failure.fix, HasSubstr(c.fix));
    EXPECT_EQ(failure.what.find('\n'), std::string::npos);
  }
}

TEST(NvidiaLibraries, MustBeThoseOfTheBuild) {
  const files::TempDir folder;
  const std::filesystem::path lib = folder.path() / "lib";
  std::filesystem::create_directory(lib);
  const auto why = [&](const std::string& torch, const std::string& cuda) {
    files::write_atomic(folder.path() / "version.py",
                        "__version__ = '" + torch + "'\ncuda: Optional[str] = " + cuda + "\n");
    return why_other_libraries(lib.string(), "2.11.0");
  };
  EXPECT_EQ(why_other_libraries(lib.string(), "2.11.0"), "") << "without the file, loading decides";
  EXPECT_EQ(why("2.11.0+cu130", "'13.0'"), "");
  EXPECT_THAT(why("2.10.0+cu130", "'13.0'"),
              AllOf(HasSubstr("torch 2.10.0+cu130 with CUDA 13.0"),
                    HasSubstr("needs torch 2.11.0 with CUDA 13"),
                    HasSubstr("tools/setup.sh --cuda")));
  EXPECT_THAT(why("2.11.0+cu126", "'12.6'"), HasSubstr("CUDA 12.6"));
  EXPECT_THAT(why("2.11.0+cpu", "None"), HasSubstr("CUDA none"));
  EXPECT_THAT(why("2.11.01", "'13.0'"), HasSubstr("torch 2.11.01"));
}

}  // namespace
}  // namespace tessera::memory
