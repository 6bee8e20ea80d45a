// SPDX-License-Identifier: Apache-2.0
// Files of monitors, compared with files that were recorded from the programs that read them.
#include <cmath>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/loopback.h"
#include "tessera/report/monitors/monitor.h"
#include "tessera/report/monitors/scalars.h"
#include "tessera/report/monitors/stored_zip.h"
#include "tessera/report/monitors/tensorboard.h"
#include "tessera/report/monitors/wandb.h"

namespace tessera::report {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

std::string recorded(const char* name) {
  return files::read(test::source_dir() / "tests/report/recorded" / name);
}

Reading reading_of(const std::string& line, std::int64_t step, std::int64_t samples) {
  return {.values = json::parse_strict(line, "line"),
          .step = step,
          .samples = samples,
          .time = 1700000000.5};
}

const std::string kLine =
    R"({"step":2,"epoch":0.5,"loss":2.5,"lr":0.001,"grad_norm":0.25,"loss_scale":1024})";

std::vector<std::string> tags_of(const Reading& reading, TagStyle style) {
  std::vector<std::string> out;
  for (const Scalar& scalar : scalars_of(reading, style))
    out.push_back(scalar.tag);
  return out;
}

TEST(Crc32c, HasTheValueOfItsStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, HasTheBytesThatTensorBoardsOwnWriterMakes) {
  const files::TempDir dir;
  const auto path = dir.path() / "events";
  const double start = 1700000000.25;
  const auto number = [](double value) { return json::Value::number(value); };
  const std::vector<Hyperparameter> lr = {{"optimizer.params.lr", number(0.001)}};
  const std::vector<Hyperparameter> bf16 = {{"bf16.enabled", json::Value::boolean(true)}};
  const std::vector<Scalar> two = {{"Train/Samples/train_loss", 2.5}, {"Train/Samples/lr", 0.001}};
  const std::vector<Scalar> zero = {{"train/loss", 0.0}};

  EventFile file(path, start);
  file.restart(start, 65);
  file.hyperparameters(start, "my run", lr);
  file.hyperparameters(1.0, "g", bf16);
  file.scalars(1700000001.5, 16, two);
  file.scalars(1700000002.5, 4294967296, zero);
  file.histogram(1700000003.0,
                 32,
                 "weights/h.0",
                 {.min = -1.5,
                  .max = 2.0,
                  .num = 3,
                  .sum = 0.75,
                  .sum_squares = 6.5,
                  .limits = {-1.0, 0.5, 2.5},
                  .counts = {1, 1, 1}});
  file.text(1700000004.0, 32, "sample", "    To be");
  file.end(1700000009.5, /*success=*/true);

  EXPECT_EQ(files::read(path), recorded("tensorboard.tfevents"));
}

TEST(EventFile, IsNamedAsTensorBoardLooksForIt) {
  EXPECT_EQ(event_file_name(1700000000.75, "my host/1", 42, 0),
            "events.out.tfevents.1700000000.my_host_1.42.0");
}

TEST(WandbLog, HasTheBytesOfWandbsOwnStore) {
  const files::TempDir dir;
  const auto path = dir.path() / "log";
  std::string pattern, repeated;
  for (int i = 0; i < 40000; ++i)
    pattern += static_cast<char>(i * 7 % 251);
  for (int i = 0; i < 70000; ++i)
    repeated += static_cast<char>(i % 250);

  WandbLog log(path);
  for (const std::string& record :
       {std::string("abcde"), pattern, std::string(25493, '\0'), repeated, std::string()})
    log.append(record);

  EXPECT_TRUE(files::read(path) == recorded("wandb.log"));
}

TEST(Scalars, AreNamedAsDeepSpeedsDashboardsExpect) {
  const Reading reading = reading_of(kLine, 2, 32);

  EXPECT_THAT(tags_of(reading, TagStyle::DeepSpeed),
              ElementsAre("Train/Samples/epoch",
                          "Train/Samples/train_loss",
                          "Train/Samples/lr",
                          "Train/Samples/grad_norm",
                          "Train/Samples/loss_scale"));
  EXPECT_EQ(axis_of(reading, TagStyle::DeepSpeed), 32);
  EXPECT_THAT(
      tags_of(reading_of(R"({"step":2,"eval_loss":2,"eval_terms":{"accuracy":0.5}})", 2, 32),
              TagStyle::DeepSpeed),
      ElementsAre("Train/Samples/eval_loss", "Train/Samples/eval_accuracy"));
  EXPECT_THAT(
      tags_of(reading_of(R"({"step":2,"experts":{"load.h.0":1.5}})", 2, 32), TagStyle::DeepSpeed),
      ElementsAre("Train/Samples/experts.load.h.0"));
}

TEST(Scalars, AreNamedAsHuggingFacesTrainerDoes) {
  const Reading reading = reading_of(kLine, 2, 32);

  EXPECT_THAT(tags_of(reading, TagStyle::HuggingFace),
              ElementsAre("train/epoch",
                          "train/loss",
                          "train/learning_rate",
                          "train/grad_norm",
                          "train/loss_scale"));
  EXPECT_EQ(axis_of(reading, TagStyle::HuggingFace), 2);
  EXPECT_THAT(tags_of(reading_of(R"({"step":2,"eval_loss":2,"test_loss":3})", 2, 32),
                      TagStyle::HuggingFace),
              ElementsAre("eval/loss", "test/loss"));
}

// DeepSpeed's backward time includes the reduction of the gradients.
TEST(Scalars, HaveDeepSpeedsTimes) {
  const Reading reading = reading_of(
      R"({"step":1,"forward_ms":1,"backward_ms":2,"reduce_ms":4,"optimizer_ms":8})", 1, 16);

  const std::vector<Scalar> scalars = scalars_of(reading, TagStyle::DeepSpeed);

  ASSERT_EQ(scalars.size(), 5U);
  EXPECT_EQ(scalars[1].tag, "Train/Samples/elapsed_time_ms_backward_inner");
  EXPECT_EQ(scalars[2].tag, "Train/Samples/elapsed_time_ms_backward_allreduce");
  EXPECT_EQ(scalars[3].tag, "Train/Samples/elapsed_time_ms_step");
  EXPECT_EQ(scalars[4].tag, "Train/Samples/elapsed_time_ms_backward");
  EXPECT_EQ(scalars[4].value, 6.0);
}

TEST(Scalars, LeaveOutWhatIsNotANumber) {
  EXPECT_THAT(tags_of(reading_of(R"({"step":1,"loss":null,"lr":0.5})", 1, 16), TagStyle::DeepSpeed),
              ElementsAre("Train/Samples/lr"));
}

class MonitorFiles : public testing::Test {
 protected:
  [[nodiscard]] MonitorContext context() const {
    MonitorContext out;
    out.run_dir = dir_.path() / "my run";
    out.resolved =
        json::parse(R"({"optimizer": {"params": {"lr": 0.001}}, "run": {"dir": ""}})", "c");
    out.time = 1700000000.25;
    out.host = "host";
    return out;
  }
  /// The sections with values from a configuration.
  [[nodiscard]] static config::Sections sections(const std::string& text) {
    config::Sections out;
    config::Problems problems;
    config::Origins origins;
    config::read(json::parse(text, "c"), out, problems, origins);
    problems.raise();
    return out;
  }
  [[nodiscard]] static std::unique_ptr<Monitor> make(const char* name,
                                                     const MonitorContext& context) {
    return monitors().get(name).make(context);
  }
  files::TempDir dir_;
};

TEST_F(MonitorFiles, OfCsvHaveDeepSpeedsNamesAndColumns) {
  const auto csv = make("csv_monitor", context());

  csv->write(reading_of(R"({"step":1,"loss":2.5,"lr":1e-05})", 1, 16));
  csv->write(reading_of(R"({"step":2,"loss":2,"lr":0.001})", 2, 32));
  csv->finish(1700000009.0, /*success=*/true);

  const auto folder = context().run_dir / "csv_monitor";
  EXPECT_EQ(files::read(folder / "Train_Samples_train_loss.csv"),
            "step,train_loss\r\n16,2.5\r\n32,2.0\r\n");
  EXPECT_EQ(files::read(folder / "Train_Samples_lr.csv"), "step,lr\r\n16,1e-05\r\n32,0.001\r\n");
}

TEST_F(MonitorFiles, OfCsvHaveEveryStepOnceAfterAResume) {
  MonitorContext at = context();
  at.sections = sections(
      fmt::format(R"({{"csv_monitor": {{"output_path": "{}"}}}})", (dir_.path() / "out").string()));
  auto csv = make("csv_monitor", at);
  csv->write(reading_of(R"({"loss":3})", 1, 16));
  csv->write(reading_of(R"({"loss":2})", 2, 32));
  csv.reset();
  at.step = 1;
  at.samples = 16;

  csv = make("csv_monitor", at);
  csv->write(reading_of(R"({"loss":1})", 2, 32));

  EXPECT_EQ(files::read(dir_.path() / "out/DeepSpeedJobName/Train_Samples_train_loss.csv"),
            "step,train_loss\r\n16,3.0\r\n32,1.0\r\n");
}

TEST_F(MonitorFiles, OfWandbLieWhereItsToolLooksForThem) {
  const auto wandb = make("wandb", context());
  wandb->write(reading_of(R"({"step":1,"loss":2.5})", 1, 16));
  wandb->finish(1700000009.0, /*success=*/true);

  const std::filesystem::path folder = wandb->place();
  EXPECT_THAT(folder.filename().string(),
              testing::MatchesRegex("offline-run-[0-9]{8}_[0-9]{6}-[a-z0-9]{8}"));
  const std::string id = folder.filename().string().substr(28);
  const std::string bytes = files::read(folder / ("run-" + id + ".wandb"));
  EXPECT_THAT(bytes, AllOf(HasSubstr("Train/Samples/train_loss"), HasSubstr("deepspeed")));
}

TEST_F(MonitorFiles, OfCometAreMessagesAndAnArchive) {
  MonitorContext at = context();
  at.sections = sections(R"({"comet": {"samples_log_interval": 32}})");
  const auto comet = make("comet", at);
  for (const int step : {1, 2, 3})
    comet->write(reading_of(R"({"loss":2.5})", step, 16 * step));
  comet->finish(1700000009.0, /*success=*/true);

  const std::filesystem::path folder = comet->place();
  const std::string messages = files::read(folder / "messages.json");
  // The first one, and the next after 32 samples.
  EXPECT_THAT(
      messages,
      AllOf(
          HasSubstr(R"("step":16,)"), HasSubstr(R"("step":48,)"), Not(HasSubstr(R"("step":32,)"))));
  const json::Value about = json::parse_strict(files::read(folder / "experiment.json"), "e");
  EXPECT_EQ(about.find("offline_id")->as_string(), folder.filename().string());
  EXPECT_EQ(about.find("stop_time")->as_integer(), 1700000009000);
  const std::string archive = files::read(folder.string() + ".zip");
  EXPECT_THAT(archive, AllOf(testing::StartsWith("PK"), HasSubstr(messages)));
}

TEST_F(MonitorFiles, OfPrometheusAreServedOnThisHostAlone) {
  MonitorContext at = context();
  at.sections = sections(R"({"prometheus": {"address": "127.0.0.1:0"}})");
  const auto prometheus = make("prometheus", at);
  prometheus->write(reading_of(
      R"({"step":7,"loss":2.5,"eval_terms":{"accuracy":0.5},"experts":{"load.h.0":2}})", 7, 112));

  const std::string place = prometheus->place();
  const std::string answer =
      loopback::get(place.substr(7, place.size() - 7 - std::string("/metrics").size()), "/metrics");

  EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("# TYPE tessera_loss gauge\ntessera_loss{run=\"my run\"} 2.5\n"));
  EXPECT_THAT(answer, HasSubstr("tessera_eval_accuracy{run=\"my run\"} 0.5\n"));
  EXPECT_THAT(answer, HasSubstr("tessera_experts_load_h_0{run=\"my run\"} 2\n"));
  EXPECT_THAT(answer, HasSubstr("tessera_samples{run=\"my run\"} 112\n"));
}

TEST_F(MonitorFiles, OfTensorBoardStartAgainAfterAResume) {
  MonitorContext at = context();
  at.step = 4;
  at.samples = 64;

  const auto board = make("tensorboard", at);

  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(board->place()))
    all += files::read(entry.path());
  // Event{wall_time, step = 65, session_log{START}}, as recorded.
  const std::string purge = recorded("tensorboard.tfevents").substr(40, 31);
  EXPECT_NE(all.find(purge), std::string::npos);
}

}  // namespace
}  // namespace tessera::report
