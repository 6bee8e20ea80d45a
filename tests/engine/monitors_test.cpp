// SPDX-License-Identifier: Apache-2.0
// Files that a training writes for other programs.
#include "tessera/engine/hooks/monitors.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/trainer.h"

namespace tessera::engine {
namespace {

using tessera::test::on_engines;
using tessera::test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

std::int64_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

std::string only_file_in(const fs::path& folder) {
  std::string out;
  for (const auto& entry : fs::directory_iterator(folder))
    out += files::read(entry.path());
  return out;
}

TEST(Monitors, ShowEveryStepOnTheAxisOfSamples) {
  TinyRun run;
  run.set("trainer.max_steps", "3").set("csv_monitor", R"({"enabled": true})");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);

  on_engines(run, {.ranks = 2}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  const std::string csv = files::read(folder / "csv_monitor/Train_Samples_train_loss.csv");
  EXPECT_THAT(csv, StartsWith("step,train_loss\r\n4,"));
  EXPECT_THAT(csv, HasSubstr("\n12,"));
  EXPECT_EQ(lines_of(csv), 4);
}

TEST(Monitors, HaveEvaluationsAndSampleTexts) {
  TinyRun run;
  run.set("trainer.max_steps", "2")
      .set("data.validation_fraction", "0.5")
      .set("eval", R"({"every": 2, "batches": 1, "prompt": "a", "max_new_tokens": 2})")
      .set("tensorboard", R"({"enabled": true, "tags": "huggingface"})");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);

  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  EXPECT_THAT(only_file_in(folder / "tensorboard"),
              AllOf(HasSubstr("train/learning_rate"),
                    HasSubstr("eval/loss"),
                    HasSubstr("sample/text_summary"),
                    HasSubstr("_hparams_/session_start_info")));
  const std::string samples = files::read(folder / "samples.jsonl");
  EXPECT_THAT(samples, StartsWith(R"({"step":2,"prompt":"a","text":"a)"));
}

// A monitor must not end a training.
TEST(Monitors, ThatCannotWriteEndAloneAndAreTold) {
  TinyRun run;
  run.set("trainer.max_steps", "2");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);
  files::write_atomic(folder / "taken", "a file");
  run.set("csv_monitor",
          R"({"enabled": true, "output_path": ")" + (folder / "taken").string() + R"("})");

  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), kExitIncomplete);
    EXPECT_EQ(engine.step(), 2);
    ASSERT_EQ(trainer.incomplete().size(), 1U);
    EXPECT_THAT(trainer.incomplete().front(), HasSubstr("csv_monitor"));
  });
}

}  // namespace
}  // namespace tessera::engine
