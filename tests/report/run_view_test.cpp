// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/run_view.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/report/run_board.h"
#include "tessera/report/watch_page.h"

namespace tessera::report {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class RunViews : public testing::Test {
 protected:
  RunViews() { std::filesystem::create_directories(folder() / "logs"); }
  [[nodiscard]] std::filesystem::path folder() const { return dir_.path() / "my"; }
  void write(const std::string& name, const std::string& content) const {
    files::write_atomic(folder() / name, content);
  }
  static std::string step_line(int step, double loss) {
    return fmt::format(
        R"({{"step":{},"epoch":0.5,"loss":{},"lr":0.001,"samples":{},"step_ms":100}})"
        "\n",
        step,
        loss,
        16 * step);
  }
  [[nodiscard]] RunView view() const {
    RunView out(folder());
    out.refresh();
    return out;
  }
  files::TempDir dir_;
};

std::vector<double> numbers(const json::Value& list) {
  std::vector<double> out;
  for (const json::Value& value : list.items())
    out.push_back(value.is_number() ? value.as_double() : -1);
  return out;
}

TEST_F(RunViews, HaveTheColumnsOfBothSplits) {
  write("metrics.jsonl",
        step_line(1, 3) + step_line(2, 2) +
            R"({"step":2,"eval_loss":2.5,"eval_terms":{"accuracy":0.25}})" + "\n" +
            step_line(3, 1));

  const json::Value details = view().details(100);

  EXPECT_THAT(numbers(*details.find("train")->find("loss")), ElementsAre(3, 2, 1));
  EXPECT_THAT(numbers(*details.find("eval")->find("step")), ElementsAre(2));
  EXPECT_THAT(numbers(*details.find("eval")->find("eval_terms.accuracy")), ElementsAre(0.25));
  EXPECT_EQ(details.find("eval_loss")->as_double(), 2.5);
}

TEST_F(RunViews, LeaveOutLinesThatAreNotJsonObjects) {
  write("metrics.jsonl",
        step_line(1, 3) + "half of a li\n[1]\n" + step_line(2, 2) + R"({"step":3,"lo)");

  EXPECT_THAT(numbers(*view().details(100).find("train")->find("step")), ElementsAre(1, 2));
}

TEST_F(RunViews, ReadOnWhereTheFileGrows) {
  const std::string second = step_line(2, 2);
  write("metrics.jsonl", step_line(1, 3) + second.substr(0, 10));
  RunView run = view();
  EXPECT_EQ(run.steps(), 1U);

  write("metrics.jsonl", step_line(1, 3) + second + step_line(3, 1));
  run.refresh();
  EXPECT_THAT(numbers(*run.details(100).find("train")->find("loss")), ElementsAre(3, 2, 1));

  // A resume has removed lines.
  write("metrics.jsonl", step_line(1, 3));
  run.refresh();
  EXPECT_EQ(run.steps(), 1U);
}

TEST_F(RunViews, OfManyStepsKeepEveryPeak) {
  std::string lines;
  for (int step = 1; step <= 10000; ++step)
    lines += step_line(step, step == 7777 ? 99 : 1 + 1.0 / step);
  write("metrics.jsonl", lines);
  const RunView run = view();

  const json::Value details = run.details(100);

  const std::vector<double> steps = numbers(*details.find("train")->find("step"));
  EXPECT_LE(steps.size(), 101U);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), 10000);
  EXPECT_THAT(steps, testing::Contains(7777));
  EXPECT_EQ(details.find("steps_known")->as_integer(), 10000);
  EXPECT_THAT(run.losses(10), SizeIs(10));
}

TEST_F(RunViews, ReportStateAndExpectedEnd) {
  write("metrics.jsonl", step_line(10, 3));
  write("status.json", R"({"state": "running", "step": 0, "exit_code": 0, "message": ""})");
  const auto owned = files::Lock::try_acquire(folder() / "lock");
  write("config.json", R"({"trainer": {"max_steps": 40}, "model": {"preset": "nano"}})");
  write("logs/rank_00000.log",
        "2026-01-01 00:00:00.000 info ready\n2026-01-01 warning a disk is full\n");
  std::filesystem::create_directories(folder() / "checkpoints/step-00000010");

  const json::Value details = view().details(100);

  EXPECT_EQ(details.find("state")->as_string(), "running");
  EXPECT_EQ(details.find("eta_s")->as_double(), 3.0);
  EXPECT_EQ(details.find("config")->find("model.preset")->as_string(), "nano");
  EXPECT_EQ(details.find("checkpoints")->items().front().as_string(), "step-00000010");
  EXPECT_THAT(details.find("events")->dump(),
              AllOf(HasSubstr("disk is full"), Not(HasSubstr("ready"))));
}

TEST_F(RunViews, NeedARunFolder) {
  EXPECT_THROW(RunView(dir_.path() / "none"), Error);
}

TEST_F(RunViews, AreABoardThatFits) {
  write("metrics.jsonl", step_line(1, 3) + step_line(2, 1));
  write("status.json", R"({"state": "failed", "message": "\u001b[31mthe disk"})");
  const std::vector<RunView> runs = {view()};

  const std::vector<std::string> board = run_board(runs, 40);

  EXPECT_THAT(
      board,
      ElementsAre("my  failed  step 2", "  loss 1.0000 | lr 1.00e-03", "  █▁", "   [31mthe disk"));
}

TEST_F(RunViews, ShowTheFirstRanksOfMany) {
  write("metrics.jsonl", step_line(1, 3));
  std::string ranks;
  for (int rank = 0; rank < 100; ++rank)
    ranks += fmt::format(R"({}{{"rank":{},"peak_bytes":{}}})", rank > 0 ? "," : "", rank, 1024);
  write("ranks.json", R"({"step":1,"ranks":[)" + ranks + "]}");
  const std::vector<RunView> runs = {view()};

  const json::Value shown = runs.front().ranks();

  EXPECT_THAT(shown.find("ranks")->items(), SizeIs(64));
  EXPECT_EQ(shown.find("more_ranks")->as_integer(), 36);
  EXPECT_THAT(run_board(runs, 80)[3], HasSubstr("100 ranks | mem 1.0 KiB to 1.0 KiB"));
}

TEST_F(RunViews, ShowTheLoadsOfExperts) {
  write("metrics.jsonl", step_line(1, 3));
  EXPECT_EQ(view().details(10).find("experts"), nullptr);
  write("experts.json", "{\"layers\": 3}");
  EXPECT_EQ(view().details(10).find("experts"), nullptr) << "a damaged file";
  write("experts.json",
        R"({"step":4,"steps":2,"layers":[{"name":"h.0","chosen":[3,0],"dropped":0}]})");

  const json::Value details = view().details(10);

  const json::Value& layer = details.find("experts")->find("layers")->items().front();
  EXPECT_EQ(layer.find("name")->as_string(), "h.0");
  EXPECT_EQ(layer.find("chosen")->dump(), "[3,0]");
}

TEST_F(RunViews, EndureADamagedTableOfRanks) {
  write("metrics.jsonl", step_line(1, 3));
  for (const char* table : {"[]", R"({"ranks":3})", R"({"ranks":[1)"}) {
    write("ranks.json", table);
    EXPECT_TRUE(view().ranks().is_null()) << table;
  }
  write("ranks.json", R"({"ranks":[1,null,{"peak_bytes":-1e300}],"stages":[1,{}]})");
  const std::vector<RunView> runs = {view()};
  EXPECT_THAT(run_board(runs, 80)[3], HasSubstr("3 ranks | mem 0 B to 0 B | stages wait 0%"));
}

TEST(Sparkline, GoesFromTheLowestToTheHighest) {
  EXPECT_EQ(sparkline(std::vector<double>{0, 7, 3.5}), "▁█▄");
  EXPECT_EQ(sparkline(std::vector<double>{2, 2}), "▁▁");
  EXPECT_EQ(sparkline(std::vector<double>()), "");
}

// A sample text or a name may contain any characters.
TEST(WatchPage, NeverLetsARunEndItsScript) {
  const json::Value data = json::Value::array({json::Value::object(
      {{"name", json::Value::string("</script><img src=x onerror=alert(1)>")}})});

  const std::string page = watch_page(data);

  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>"));
  EXPECT_THAT(watch_page({}), Not(HasSubstr("window.tesseraRuns =")));
  // The page loads nothing from other sites.
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("src=\"")));
}

}  // namespace
}  // namespace tessera::report
