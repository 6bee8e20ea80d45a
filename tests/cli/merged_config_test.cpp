// SPDX-License-Identifier: Apache-2.0
// Two files of one training: a file of tessera, and DeepSpeed's file of --deepspeed.
#include "tessera/cli/merged_config.h"

#include <string>

#include "cli/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string merged(const std::string& first, const std::string& second) {
  return merged_configs(json::parse(first, "my.json"), json::parse(second, "ds.json")).dump();
}

std::string conflict(const std::string& first, const std::string& second) {
  try {
    merged(first, second);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

TEST(MergedConfigs, HaveTheKeysOfBoth) {
  EXPECT_EQ(merged(R"({"model": {"num_layers": 1}, "zero_optimization": {"stage": 2}})",
                   R"({"train_batch_size": 4, "zero_optimization": {"overlap_comm": true}})"),
            R"({"model":{"num_layers":1},"zero_optimization":{"stage":2,"overlap_comm":true},)"
            R"("train_batch_size":4})");
  EXPECT_EQ(merged(R"({"seed": null, "steps_per_print": 5})", R"({"steps_per_print": 5})"),
            R"({"seed":null,"steps_per_print":5})");
}

TEST(MergedConfigs, TakeTheValueInPlaceOfAuto) {
  const std::string automatic = R"({"optimizer": {"params": {"lr": "auto"}}})";
  const std::string number = R"({"optimizer":{"params":{"lr":1e-3}}})";

  EXPECT_EQ(merged(automatic, number), number);
  EXPECT_EQ(merged(number, automatic), number);
}

TEST(MergedConfigs, OfTwoValuesNameBothPlaces) {
  EXPECT_THAT(conflict("{\"train_batch_size\": 4,\n \"steps_per_print\": 5}",
                       "{\"steps_per_print\": 7,\n\n \"train_batch_size\": 8}"),
              AllOf(HasSubstr("train_batch_size is 4 at my.json:1:"),
                    HasSubstr("8 at ds.json:3:"),
                    HasSubstr("steps_per_print is 5 at my.json:2:"),
                    HasSubstr("7 at ds.json:1:")));
  // One key under two names, and in its short form.
  EXPECT_THAT(conflict(R"({"parallel": {"pipeline": 2}})", R"({"pipeline": {"stages": 4}})"),
              AllOf(HasSubstr("parallel.pipeline.size is 2"), HasSubstr("ds.json:1:")));
}

// The first row of docs/coming_from.md.
TEST(MergedConfigs, OfTheDocumentedCommandTrain) {
  const files::TempDir dir;
  const auto path = [&](const char* name) { return (dir.path() / name).string(); };
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "the quick brown fox ";
  files::write_atomic(path("t.txt"), text);
  files::write_atomic(path("my.json"),
                      R"({"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2},
                          "data": {"train": ")" +
                          path("t.txt") + R"(", "sequence_length": 16},
                          "trainer": {"max_steps": 2},
                          "run": {"threads_per_rank": 1, "dir": ")" +
                          path("r") + "\"}}");
  files::write_atomic(path("ds.json"),
                      R"({"train_micro_batch_size_per_gpu": "auto",
                          "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
                          "zero_optimization": {"stage": 2}})");

  const Outcome out = run_program({"train",
                                   path("my.json"),
                                   "--deepspeed",
                                   path("ds.json"),
                                   "--num_gpus",
                                   "2",
                                   "--per_device_train_batch_size",
                                   "1",
                                   "--learning_rate",
                                   "3e-4",
                                   "--dry-run"});

  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_THAT(out.out, HasSubstr("stage 2"));
}

}  // namespace
}  // namespace tessera::cli
