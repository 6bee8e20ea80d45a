// SPDX-License-Identifier: Apache-2.0
// Traces, counts of collectives and the report of arithmetic, from spans that a test reports.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/trace.h"
#include "tessera/config/json.h"
#include "tessera/report/comms_report.h"
#include "tessera/report/flops_report.h"
#include "tessera/report/trace_events.h"

namespace tessera::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using trace::Kind;

void tell(Kind kind,
          const char* name,
          const char* detail,
          double begin,
          double end,
          double flops = 0,
          double bytes = 0,
          int ranks = 1) {
  trace::tell({.kind = kind,
               .name = name,
               .detail = detail,
               .begin = begin,
               .end = end,
               .flops = flops,
               .bytes = bytes,
               .ranks = ranks});
}

TEST(Trace, IsHeardOnlyWhileSomebodyListens) {
  EXPECT_FALSE(trace::heard());
  TraceRecorder first(0);
  {
    const TraceRecorder second(0);
    const trace::Scope scope(Kind::Phase, "data");
  }
  EXPECT_TRUE(trace::heard());
  EXPECT_EQ(first.size(), 1U);
}

TEST(Trace, IsOneFileWithAProcessForEachRank) {
  std::vector<std::string> parts;
  for (const int rank : {0, 1}) {
    TraceRecorder recorder(rank);
    tell(Kind::Operation, "linear", "8x4 -> \"16\"", 1.0, 1.25, 1024, 64);
    tell(Kind::Block, "forward", "h.0", 0.5, 2.0);
    tell(Kind::Collective, "all_gather", "gather h.0", 1.0, 3.0, 0, 512, 2);
    parts.push_back(recorder.events("steps 1 to 2"));
  }

  const json::Value file = json::parse_strict(trace_file(parts), "trace");

  const auto& events = file.find("traceEvents")->items();
  ASSERT_EQ(events.size(), 2U * 7U);
  const json::Value& linear = events[3];
  EXPECT_EQ(linear.find("ph")->as_string(), "X");
  EXPECT_EQ(linear.find("ts")->as_double(), 1e6);
  EXPECT_EQ(linear.find("dur")->as_double(), 250000.0);
  EXPECT_EQ(linear.find("args")->find("flops")->as_double(), 1024.0);
  EXPECT_EQ(events[4].find("name")->as_string(), "h.0 forward");
  EXPECT_EQ(events[5].find("ph")->as_string(), "b");
  EXPECT_EQ(events[6].find("ph")->as_string(), "e");
  EXPECT_EQ(events[5].find("id")->as_string(), events[6].find("id")->as_string());
  EXPECT_EQ(events[10].find("pid")->as_integer(), 1);
}

// 4 ranks share 4 MB in 2 ms: 2 GB/s, of which a ring sends 3/4 over each link, twice in an
// all-reduce.
TEST(Comms, HaveTheBandwidthsOfTheirAlgorithms) {
  CommsCounter counter({});
  for (const char* op : {"all_reduce", "all_gather", "broadcast"}) {
    tell(Kind::Collective, op, "", 1.0, 1.002, 0, 4e6, 4);
    tell(Kind::Wait, op, "", 1.001, 1.002, 0, 4e6, 4);
  }

  const std::vector<CommsRow> rows = counter.rows();

  ASSERT_EQ(rows.size(), 3U);
  EXPECT_NEAR(rows[0].algbw(), 2e9, 1e3);
  EXPECT_NEAR(rows[0].busbw(), 1.5e9, 1e3);  // all_gather
  EXPECT_NEAR(rows[1].busbw(), 3e9, 1e3);    // all_reduce
  EXPECT_NEAR(rows[2].busbw(), 2e9, 1e3);    // broadcast
  EXPECT_NEAR(rows[0].waited, 0.001, 1e-9);
}

TEST(Comms, AreCountedByOperationAndSize) {
  CommsCounter counter({"all_gather_into_tensor"});
  for (const double bytes : {64.0, 64.0, 128.0})
    tell(Kind::Collective, "all_gather", "", 0, 1, 0, bytes, 2);
  tell(Kind::Collective, "barrier", "", 0, 1, 0, 0, 2);

  const std::vector<CommsRow> rows = counter.rows();

  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].count, 2);
  EXPECT_EQ(rows[1].count, 1);
  EXPECT_THAT(comms_table(rows, {0.0, 0.0}), HasSubstr("all_gather"));
}

class Flops : public testing::Test {
 protected:
  // Two blocks with one product each, and the update.
  Flops() {
    tell(Kind::Operation, "linear", "", 0.1, 0.2, 100);
    tell(Kind::Block, "forward", "h.0", 0.0, 1.0);
    tell(Kind::Operation, "linear", "", 1.1, 1.2, 300);
    tell(Kind::Operation, "norm", "", 1.2, 1.3);
    tell(Kind::Block, "forward", "h.1", 1.0, 2.0);
    tell(Kind::Operation, "linear dx", "", 2.1, 2.2, 600);
    tell(Kind::Block, "backward", "h.1", 2.0, 4.0);
    tell(Kind::Operation, "adamw", "", 5.0, 6.0);
  }
  WorkCounter counter_;
};

TEST_F(Flops, BelongToTheBlockInWhichTheyRan) {
  const std::vector<BlockWork>& blocks = counter_.blocks();

  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].forward.flops, 100.0);
  EXPECT_EQ(blocks[0].forward.macs(), 50.0);
  EXPECT_EQ(blocks[1].forward.flops, 300.0);
  EXPECT_EQ(blocks[1].backward.flops, 600.0);
  EXPECT_EQ(blocks[1].backward.seconds, 2.0);
  EXPECT_EQ(blocks[1].operations.at("linear").calls, 1);
  EXPECT_EQ(counter_.outside().seconds, 1.0);
}

TEST_F(Flops, AreReportedAsDeeplyAsAsked) {
  std::vector<BlockWork> blocks = counter_.blocks();
  blocks[0].parameters = 10;
  blocks[1].parameters = 30;
  const StepFacts facts{.step = 3, .batch = 8, .parameters = 40, .seconds = 8.0};

  const std::string all = flops_report(facts, blocks, -1, 1, true);
  EXPECT_THAT(all, HasSubstr("profile of step 3"));
  EXPECT_THAT(all, HasSubstr("forward MACs:                                              200MACs"));
  EXPECT_THAT(all, HasSubstr("samples/second:                                            1.00"));
  EXPECT_THAT(all, HasSubstr("MACs             h.1 450MACs\n"));
  EXPECT_THAT(all, HasSubstr("linear dx"));
  EXPECT_THAT(flops_report(facts, blocks, 1, 1, true), Not(HasSubstr("linear dx")));
  EXPECT_THAT(flops_report(facts, blocks, 1, 1, false), Not(HasSubstr("every block")));
  EXPECT_THAT(flops_report(facts, blocks, 0, 1, true), Not(HasSubstr("h.1")));
}

}  // namespace
}  // namespace tessera::report
