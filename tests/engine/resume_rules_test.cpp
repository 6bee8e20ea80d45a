// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/engine/resume.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::engine {
namespace {

using test::TinyRun;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

/// Datasets that consist of their fingerprints alone.
data::Datasets data_of(const std::string& train, const std::string& validation = "held out") {
  data::Datasets data;
  data.fingerprint = train;
  data.validation_fingerprint = validation;
  return data;
}

checkpoint::Meta meta_of(const planner::Plan& plan) {
  checkpoint::Meta meta;
  meta.step = 3;
  meta.config = plan.resolved();
  meta.extra["data"] = json::Value::string("same");
  meta.extra["validation"] = json::Value::string("held out");
  meta.extra["tokenizer"] = json::Value::string(plan.data().tokenizer->fingerprint());
  return meta;
}

/// What a resume reports when `path` has become `value`.
std::vector<std::string> changes_after(const std::string& path, const std::string& value) {
  TinyRun run;
  const checkpoint::Meta meta = meta_of(run.plan({}));
  run.set(path, value);
  return accepted_changes(meta, run.plan({}), data_of("same"));
}

TEST(ResumeRules, TheSameConfigurationContinuesSilently) {
  const TinyRun run;

  EXPECT_TRUE(accepted_changes(meta_of(run.plan({})), run.plan({}), data_of("same")).empty());
}

TEST(ResumeRules, OptimizerScheduleAndClippingAreAcceptedAndListed) {
  EXPECT_EQ(changes_after("optimizer.params.lr", "0.002"),
            std::vector<std::string>{"optimizer.params.lr: 1e-3 -> 0.002"});
  EXPECT_FALSE(changes_after("gradient_clipping", "0.5").empty());
  EXPECT_FALSE(changes_after("scheduler.params.min_lr", "0").empty());
  EXPECT_FALSE(changes_after("bf16.enabled", "true").empty());
  EXPECT_FALSE(
      changes_after("optimizer.groups", R"([{"pattern": "wpe", "frozen": true}])").empty());
  EXPECT_FALSE(
      changes_after("optimizer.weight_decay_schedule", R"({"style": "linear", "end": 0.2})")
          .empty());
  EXPECT_FALSE(changes_after("gradient_clip_value", "0.5").empty());
  EXPECT_FALSE(changes_after("data_types.grad_accum_dtype", "\"bf16\"").empty());
  EXPECT_FALSE(changes_after("communication_data_type", "\"bf16\"").empty());
}

TEST(ResumeRules, WeightsAndGradientsThatTravelInEightBitsAreAcceptedAndListed) {
  for (const std::string key : {"zero_quantized_gradients",
                                "zero_quantized_weights",
                                "zero_quantized_nontrainable_weights"}) {
    TinyRun run;
    const checkpoint::Meta meta = meta_of(run.plan({.stage = 3}));
    run.set("zero_optimization." + key, "true");

    EXPECT_THAT(
        accepted_changes(meta, run.plan({.stage = 3}), data_of("same")),
        ElementsAre(AllOf(StartsWith("zero_optimization." + key + ": "), EndsWith("-> true"))));
  }
}

TEST(ResumeRules, EquivalentSpellingsAreNotAChange) {
  EXPECT_TRUE(changes_after("optimizer.type", "\"adamw\"").empty());
  EXPECT_TRUE(changes_after("model.activation", "\"gelu_new\"").empty());
}

TEST(ResumeRules, AnotherPrecisionIsAcceptedAndSaysWhatBecomesOfTheLossScale) {
  TinyRun half, brain;
  half.set("fp16.enabled", "true");
  brain.set("bf16.enabled", "true");
  checkpoint::Meta of_half = meta_of(half.plan({}));
  of_half.extra["loss_scaler"] = json::Value::object();

  EXPECT_THAT(accepted_changes(of_half, brain.plan({}), data_of("same")),
              UnorderedElementsAre("fp16.enabled: true -> false",
                                   "bf16.enabled: false -> true",
                                   HasSubstr("fp16."),
                                   HasSubstr("fp16."),
                                   HasSubstr("fp16."),
                                   HasSubstr("fp16."),
                                   HasSubstr("fp16."),
                                   HasSubstr("fp16."),
                                   HasSubstr("the state of the loss scaler is dropped")));
  EXPECT_THAT(accepted_changes(meta_of(brain.plan({})), half.plan({}), data_of("same")),
              Contains(HasSubstr("the loss scale starts at 65536")));
}

TEST(ResumeRules, BlocksThatAreOffBeforeAndAfterAreNotListed) {
  const TinyRun run;
  checkpoint::Meta old = meta_of(run.plan({}));
  auto& members = old.config.members();
  std::erase_if(members, [](const auto& member) {
    return member.first == "fp16" || member.first == "amp" || member.first == "torch_autocast";
  });

  EXPECT_TRUE(accepted_changes(old, run.plan({}), data_of("same")).empty());
  EXPECT_TRUE(changes_after("fp16.loss_scale", "128").empty());
}

TEST(ResumeRules, StepsEvaluationAndPrintingAreFree) {
  EXPECT_TRUE(changes_after("trainer.max_steps", "50").empty());
  EXPECT_TRUE(changes_after("eval.every", "7").empty());
  EXPECT_TRUE(changes_after("steps_per_print", "3").empty());
  EXPECT_TRUE(changes_after("checkpoint.keep", "9").empty());
}

TEST(ResumeRules, AnotherLayoutIsFree) {
  const TinyRun run;

  const auto changes =
      accepted_changes(meta_of(run.plan({.ranks = 1, .accumulation = 4, .stage = 0})),
                       run.plan({.ranks = 4, .accumulation = 1, .stage = 1}),
                       data_of("same"));

  EXPECT_TRUE(changes.empty()) << changes.front();
}

TEST(ResumeRules, AnotherModelSeedLengthOrOptimizerIsRefusedWithTheDifference) {
  const std::vector<std::pair<std::string, std::string>> changes = {{"model.num_layers", "3"},
                                                                    {"model.dropout", "0.2"},
                                                                    {"trainer.seed", "6"},
                                                                    {"optimizer.type", "\"Adam\""},
                                                                    {"data.stride", "8"}};
  for (const auto& [path, value] : changes) {
    SCOPED_TRACE(path);
    try {
      changes_after(path, value);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      EXPECT_NE(error.text().find("--resume never"), std::string::npos);
    }
  }
}

TEST(ResumeRules, OtherDataIsRefused) {
  const TinyRun run;

  EXPECT_THROW(accepted_changes(meta_of(run.plan({})), run.plan({}), data_of("another")), Error);
}

TEST(ResumeRules, OtherEvaluationDataIsAcceptedAndListed) {
  const TinyRun run;
  const checkpoint::Meta meta = meta_of(run.plan({}));

  EXPECT_THAT(accepted_changes(meta, run.plan({}), data_of("same", "other text")),
              ElementsAre(HasSubstr("data.validation")));
  EXPECT_THAT(accepted_changes(meta, run.plan({}), data_of("same", "")),
              ElementsAre(HasSubstr("data.validation")));
}

TEST(ResumeRules, EvaluationDataThatOnlyMovedIsFree) {
  TinyRun run;
  run.set("data.validation_fraction", "0").set("data.validation", "[\"a.txt\"]");
  const checkpoint::Meta meta = meta_of(run.plan({}));
  run.set("data.validation", "[\"b.txt\"]");

  EXPECT_TRUE(accepted_changes(meta, run.plan({}), data_of("same")).empty());
}

TEST(RunFolder, IsRefusedByADryRunTooWhichMakesNothing) {
  const files::TempDir dir;
  files::write_atomic(dir.path() / "file", "");
  const auto refused = [](const std::filesystem::path& path) {
    try {
      RunFolder(path, RunFolder::Access::Check);
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 8);
      EXPECT_FALSE(error.fix().empty());
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_THAT(refused(dir.path() / "file"), HasSubstr("not a folder"));
  EXPECT_THAT(refused(dir.path() / "file" / "below"), HasSubstr("not a folder"));
  EXPECT_EQ(refused(dir.path() / "a" / "b" / "c"), "");
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "a"));
  const RunFolder owned(dir.path() / "run");
  EXPECT_THAT(refused(dir.path() / "run"), HasSubstr("in use by"));
}

TEST(RunFolder, WhoseFoldersCannotBeUsedIsRefusedBeforeTheFirstSave) {
  for (const auto access : {RunFolder::Access::Own, RunFolder::Access::Check}) {
    for (const std::string name : {"logs", "checkpoints"}) {
      const files::TempDir dir;
      const std::filesystem::path run = dir.path() / "run", inside = run / name;
      std::filesystem::create_directory(run);
      const auto refused = [&] {
        try {
          const RunFolder folder(run, access);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), Error::Kind::Io);
          return std::string(error.what());
        }
        return std::string();
      };

      std::filesystem::create_symlink("nowhere", inside);
      EXPECT_THAT(refused(), HasSubstr(inside.string() + " is a symbolic link"));
      std::filesystem::remove(inside);
      files::write_atomic(inside, "");
      EXPECT_THAT(refused(), HasSubstr(inside.string() + ": not a folder"));
      std::filesystem::remove(inside);
      std::filesystem::create_directory(inside);
      EXPECT_EQ(refused(), "");
    }
  }
}

// Whoever may write into the folder must not make a training overwrite a file elsewhere, or wait.
TEST(RunFolder, RefusesLinksAndFifosInThePlaceOfItsFiles) {
  const std::vector<std::string> names = {
      "lock", "status.json", "config.json", "metrics.jsonl", "logs/rank_00000.log"};
  for (const auto access : {RunFolder::Access::Own, RunFolder::Access::Check}) {
    for (const std::string& name : names) {
      for (const std::string kind : {"a symbolic link", "a FIFO"}) {
        SCOPED_TRACE(name + ", " + kind);
        const files::TempDir dir;
        const std::filesystem::path run = dir.path() / "run", target = dir.path() / "target";
        std::filesystem::create_directories(run / "logs");
        files::write_atomic(target, "precious");
        if (kind == "a FIFO") {
          ASSERT_EQ(mkfifo((run / name).c_str(), 0600), 0);
        } else {
          std::filesystem::create_symlink(target, run / name);
        }

        std::string refused;
        try {
          const RunFolder folder(run, access);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), Error::Kind::Io);
          refused = error.what();
        }

        EXPECT_THAT(refused, HasSubstr((run / name).string() + " is " + kind));
        EXPECT_EQ(files::read(target), "precious");
      }
    }
  }
}

TEST(RunFolder, ThatCannotBePreparedIsAUsersError) {
  const files::TempDir dir;
  const RunFolder folder(dir.path() / "run");
  files::write_atomic(folder.path() / "logs", "");

  try {
    folder.prepare(json::Value::object());
    ADD_FAILURE() << "prepared";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Io);
    EXPECT_THAT(error.what(), HasSubstr((folder.path() / "logs").string()));
  }
}

/// The contents of the folder's status.json.
json::Value status_of(const RunFolder& folder) {
  return json::parse_strict(files::read(folder.path() / "status.json"), "status.json");
}

/// As on a full disk: no second file can be written next to the existing one.
TEST(RunFolder, HasItsStatusWhereThereIsNoRoomForASecondFile) {
  const files::TempDir dir;
  const RunFolder folder(dir.path() / "run");
  folder.write_status("running", 0, 0, "words that are longer than what comes after them");
  std::filesystem::create_directory(folder.path() /
                                    ("status.json.tmp-" + std::to_string(::getpid())));

  folder.write_status("failed", 3, 8, "full");
  EXPECT_EQ(status_of(folder).find("state")->as_string(), "failed");
  EXPECT_EQ(status_of(folder).find("message")->as_string(), "full");

  folder.finish_status(kExitStopped);
  EXPECT_EQ(status_of(folder).find("state")->as_string(), "stopped");
}

TEST(RunFolder, IsFinishedThoughASignalCameInTheLastStep) {
  const files::TempDir dir;
  const RunFolder folder(dir.path() / "run");
  folder.note_finished(8);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "status.json")) << "nothing ran here";
  folder.write_status("stopped", 8, kExitStopped, "");

  folder.note_finished(8);

  EXPECT_EQ(status_of(folder).find("state")->as_string(), "finished");
  EXPECT_EQ(status_of(folder).find("exit_code")->as_integer(), 0);
  folder.write_status("finished", 8, kExitIncomplete, "a checkpoint is missing");
  folder.note_finished(8);
  EXPECT_EQ(status_of(folder).find("exit_code")->as_integer(), kExitIncomplete);
}

TEST(RunFolder, IsRemovedIfItWasMadeForNothing) {
  const files::TempDir dir;
  { const RunFolder folder(dir.path() / "run"); }
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run"));
  {
    const RunFolder folder(dir.path() / "run");
    folder.prepare(json::Value::object());
  }
  { const RunFolder folder(dir.path() / "run"); }
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "run" / "config.json"));
}

TEST(RunFolder, WaitsForTheRanksOfAKilledSupervisor) {
  const files::TempDir dir;
  const std::filesystem::path path = dir.path() / "run";
  RunFolder(path).prepare(json::Value::object());
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    const auto lock = files::Lock::try_acquire(path / "lock");
    if (::fork() == 0) {  // its rank, which ends a little later
      static_cast<void>(::write(ready[1], "x", 1));
      ::usleep(300'000);
      ::_exit(0);
    }
    ::usleep(50'000);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::waitpid(supervisor, nullptr, 0);
  ASSERT_TRUE(files::Lock::holder(path / "lock"));

  EXPECT_NO_THROW(RunFolder{path});
}

TEST(RunFolder, ASecondOwnerIsRefused) {
  const files::TempDir dir;
  const RunFolder first(dir.path() / "run");

  EXPECT_THROW(RunFolder(dir.path() / "run"), Error);
}

TEST(RunFolder, NeverMovesTheOldContentsAside) {
  const files::TempDir dir;
  const RunFolder folder(dir.path() / "run");
  folder.prepare(json::Value::object());

  const auto old = folder.move_aside();

  ASSERT_TRUE(old);
  EXPECT_TRUE(std::filesystem::exists(*old / "config.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "config.json"));
}

TEST(RunFolder, IsNotMovedAsideFromAroundTheCurrentFolder) {
  const files::TempDir dir;
  const std::filesystem::path before = std::filesystem::current_path();
  files::write_atomic(dir.path() / "novel.txt", "a novel");
  std::filesystem::create_directories(dir.path() / "deep" / "er");
  for (const char* inside : {".", "deep/er"}) {
    std::filesystem::current_path(dir.path() / inside);
    const RunFolder folder(dir.path());

    EXPECT_THROW(folder.require_own_contents(), Error) << inside;
    EXPECT_NO_THROW(RunFolder(dir.path() / "run").require_own_contents()) << inside;
    std::filesystem::current_path(before);
    EXPECT_NO_THROW(folder.require_own_contents()) << inside;
  }
  const files::TempDir empty;
  std::filesystem::current_path(empty.path());
  EXPECT_NO_THROW(RunFolder(empty.path()).require_own_contents());
  std::filesystem::current_path(before);
}

TEST(RunFolder, MovesTheOldContentsAsideHoweverItIsNamed) {
  const files::TempDir dir;
  const std::filesystem::path run = dir.path() / "run", link = dir.path() / "link";
  std::filesystem::create_directory(run);
  std::filesystem::create_directory_symlink(run, link);
  for (const std::string& name : {run.string() + "/", link.string(), run.string() + "/."}) {
    const RunFolder folder(name);
    folder.prepare(json::Value::object());

    const auto old = folder.move_aside();

    ASSERT_TRUE(old) << name;
    EXPECT_EQ(old->parent_path(), std::filesystem::canonical(dir.path())) << name;
    EXPECT_TRUE(std::filesystem::exists(*old / "config.json")) << name;
    EXPECT_FALSE(folder.move_aside()) << name;
  }
}

TEST(RunFolder, SparesTheCheckpointInItThatTrainingContinuesFrom) {
  const files::TempDir dir;
  const RunFolder folder(dir.path() / "run");
  folder.prepare(json::Value::object());
  const auto kept = folder.path() / "kept" / "step-00000004";
  std::filesystem::create_directories(kept);

  const auto old = folder.move_aside(kept);

  ASSERT_TRUE(old);
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_TRUE(std::filesystem::exists(*old / "config.json"));
  EXPECT_FALSE(folder.move_aside(folder.path()));
}

TEST(RunFolder, MovesNothingAsideWhereOneThingCannotFollow) {
  const files::TempDir dir;
  // The path is so deep that the system has room for it, but not for the same path within
  // run.old-1.
  std::filesystem::path run = std::filesystem::canonical(dir.path());
  while (run.native().size() < 3600)
    run /= std::string(200, 'd');
  run /= std::string(3839 - run.native().size(), 'r');
  const RunFolder folder(run);
  folder.prepare(json::Value::object());
  const std::filesystem::path stays = run / std::string(250, 's');
  std::filesystem::create_directory(stays);

  try {
    folder.move_aside();
    ADD_FAILURE() << "moved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Io);
  }

  for (const auto& path : {stays, run / "config.json", run / "logs", run / "checkpoints"})
    EXPECT_TRUE(std::filesystem::exists(path)) << path.filename();
  EXPECT_FALSE(std::filesystem::exists(run.string() + ".old-1"));
}

/// As where the folder is a mount point: here a longer name next to it is not allowed.
TEST(RunFolder, KeepsTheOldContentsInsideIfTheParentCannotHoldThem) {
  const files::TempDir dir;
  const std::filesystem::path run = dir.path() / std::string(250, 'r');
  const RunFolder folder(run);
  folder.prepare(json::Value::object());

  EXPECT_EQ(folder.move_aside(), std::filesystem::canonical(run) / "old-1");
  EXPECT_TRUE(std::filesystem::exists(run / "old-1" / "config.json"));
  EXPECT_FALSE(folder.move_aside());
  folder.prepare(json::Value::object());
  EXPECT_EQ(folder.move_aside(), std::filesystem::canonical(run) / "old-2");
}

}  // namespace
}  // namespace tessera::engine
