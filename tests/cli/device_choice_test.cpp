// SPDX-License-Identifier: Apache-2.0
// Flags and variables that choose devices: a GPU that is not there is refused before anything
// starts.
#include "tessera/cli/device_choice.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DeviceChoice : public testing::Test {
 protected:
  void SetUp() override {
    files::write_atomic(folder_.path() / "text.txt", std::string(4000, 'x'));
    files::write_atomic(
        folder_.path() / "ds.json",
        R"({"model": {"preset": "nano"}, "data": {"train": ")" + path("text.txt") +
            R"(", "sequence_length": 32}, "train_batch_size": 4, "run": {"dir": ")" + path("run") +
            R"("}, "trainer": {"max_steps": 1}})");
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  files::TempDir folder_;
};

/// Sets a variable for as long as it lives; nullptr removes it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    put(value);
  }
  ~Variable() { put(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void put(const char* value) {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

TEST_F(DeviceChoice, RefusesAGpuThatIsNotThere) {
  const Variable no_driver("TESSERA_NVML", "/nowhere/libnvidia-ml.so"),
      any("CUDA_VISIBLE_DEVICES", nullptr), accelerator("DS_ACCELERATOR", nullptr);
  const std::vector<std::string> start = {"train", path("ds.json"), "--dry-run"};
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--device", "cuda"},
                                             {"--device=cuda:0"},
                                             {"--set", "run.device=cuda"},
                                             {"--device", "cuda", "--num_gpus", "4"},
                                             {"--device", "cuda", "-i", "localhost:1"}}) {
    std::vector<std::string> words = start;
    words.insert(words.end(), flags.begin(), flags.end());
    const Variable slots("CUDA_VISIBLE_DEVICES", nullptr);
    const Outcome o = run_program(words);
    EXPECT_EQ(o.code, 8) << o.err;
    EXPECT_THAT(o.err, HasSubstr("no device \"cuda\": no driver of NVIDIA is installed"));
    EXPECT_THAT(o.err, HasSubstr("set run.device (--device) to cpu or auto"));
  }
  EXPECT_EQ(run_program({"train", path("ds.json"), "--dry-run", "--device", "auto"}).code, 0);
  const Outcome unknown = run_program({"train", path("ds.json"), "--dry-run", "--device", "gpu"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("run.device"), HasSubstr("gpu")));
}

TEST_F(DeviceChoice, HasTheAcceleratorOfDeepSpeedsVariable) {
  const Variable no_driver("TESSERA_NVML", "/nowhere/libnvidia-ml.so");
  const std::vector<std::string> start = {"train", path("ds.json"), "--dry-run"};
  {
    const Variable cuda("DS_ACCELERATOR", "cuda");
    EXPECT_EQ(run_program(start).code, 8);
    std::vector<std::string> on_cpu = start;
    on_cpu.insert(on_cpu.end(), {"--device", "cpu"});
    EXPECT_EQ(run_program(on_cpu).code, 0);
  }
  const Variable cpu("DS_ACCELERATOR", "cpu");
  EXPECT_EQ(run_program(start).code, 0);
  const Variable other("DS_ACCELERATOR", "xpu");
  EXPECT_THAT(run_program(start).err, HasSubstr("DS_ACCELERATOR=xpu: there is no such device"));
}

TEST_F(DeviceChoice, ShowsTheSlotsOfThisHostToCuda) {
  const Variable visible("CUDA_VISIBLE_DEVICES", "5");
  const Outcome o = run_program(
      {"train", path("ds.json"), "--dry-run", "--device", "cpu", "--include", "localhost:1,3"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_STREQ(std::getenv("CUDA_VISIBLE_DEVICES"), "1,3");
  EXPECT_THAT(o.err, HasSubstr("CUDA_VISIBLE_DEVICES=5 is replaced by the slots"));
}

}  // namespace
}  // namespace tessera::cli
