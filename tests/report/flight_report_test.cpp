// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/flight_report.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::report {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

FlightLog log_of(int rank, std::vector<FlightOperation> operations) {
  FlightLog log;
  log.rank = rank;
  log.ranks = 3;
  log.step = 12;
  log.operations = std::move(operations);
  return log;
}
FlightOperation call(std::int64_t number, std::int64_t sequence, const std::string& what) {
  return {number, sequence, 12, "0-2", what, false};
}

TEST(FlightReport, NamesTheRankThatDidNotCallAnOperation) {
  const auto lines = explain_flight(
      {log_of(0, {call(5, 3, "all_gather w at a:1"), call(6, 4, "all_reduce loss at b:2")}),
       log_of(1, {call(5, 3, "all_gather w at a:1")}),
       log_of(2, {call(5, 3, "all_gather w at a:1"), call(6, 4, "all_reduce loss at b:2")})});

  EXPECT_THAT(
      lines,
      Contains("rank 1 did not call operation 4 of ranks 0-2: all_reduce loss at b:2; called by "
               "ranks 0, 2"));
  EXPECT_THAT(lines, Contains("rank 1: step 12, its operation 5: all_gather w at a:1"));
}

TEST(FlightReport, NamesCallsThatDiffer) {
  const auto lines = explain_flight({log_of(0, {call(1, 0, "all_reduce loss at b:2")}),
                                     log_of(1, {call(1, 0, "barrier save at c:3")}),
                                     log_of(2, {})});

  EXPECT_THAT(
      lines,
      Contains("operation 0 of ranks 0-2 differs: rank 0 called all_reduce loss at b:2; rank 1 "
               "called barrier save at c:3"));
  EXPECT_THAT(lines, Contains("rank 2: step 12, has posted nothing"));
}

TEST(FlightReport, NamesRanksWithoutARecordAndTheOneThatBrokeIt) {
  FlightLog broke = log_of(0, {call(1, 0, "barrier a at b:1")});
  broke.broke_it = true;
  broke.message = "the loss is nan";
  broke.waits_for = 2;

  const auto lines = explain_flight({broke, log_of(1, {call(1, 0, "barrier a at b:1")})});

  EXPECT_THAT(lines, Contains("rank 0 broke it: the loss is nan"));
  EXPECT_THAT(lines, Contains(HasSubstr("waits for rank 2")));
  EXPECT_THAT(lines, Contains(HasSubstr("rank 2 left no record")));
}

// A partition: no rank broke it, and each side says that the other one was lost.
TEST(FlightReport, NamesTheHostsAndTheOneThatWasLost) {
  std::vector<FlightLog> logs;
  for (int rank = 0; rank < 3; ++rank) {
    logs.push_back(log_of(rank, {call(1, 0, "barrier a at b:1")}));
    logs.back().host = rank < 2 ? "node-a" : "node-b";
    logs.back().message =
        rank < 2 ? "host node-b was lost (ranks 2 to 2)" : "the host of rank 0, node-a, was lost";
  }

  const auto lines = explain_flight(logs);

  EXPECT_THAT(lines, Contains("rank 2 of host node-b: step 12, its operation 1: barrier a at b:1"));
  EXPECT_THAT(lines, Contains("ranks 0, 1 stopped because: host node-b was lost (ranks 2 to 2)"));
  EXPECT_THAT(lines, Contains("rank 2 stopped because: the host of rank 0, node-a, was lost"));
}

TEST(FlightReport, SaysOnceWhyAllStopped) {
  std::vector<FlightLog> logs;
  for (int rank = 0; rank < 3; ++rank) {
    logs.push_back(log_of(rank, {call(1, 0, "barrier a at b:1")}));
    logs.back().host = "node-a";
    logs.back().broke_it = rank == 1;
    logs.back().message = "the loss is nan";
  }

  const auto lines = explain_flight(logs);

  EXPECT_THAT(lines, Contains("rank 1 of host node-a broke it: the loss is nan"));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("stopped because"))));
}

/// Rank 1 is behind rank 0, and rank 2 behind both.
std::vector<FlightLog> behind_each_other() {
  const FlightOperation first = call(5, 3, "all_gather w at a:1"),
                        second = call(6, 4, "all_reduce loss at b:2"),
                        third = call(7, 5, "barrier save at c:3");
  return {log_of(0, {first, second, third}), log_of(1, {first, second}), log_of(2, {first})};
}

TEST(FlightReport, AccusesNobodyButTheRankOfTheKnownCause) {
  const std::string cause = "rank 1 was lost: signal 9 (SIGKILL) at step 12";
  std::vector<FlightLog> logs = behind_each_other();
  for (FlightLog& log : logs)
    log.message = "rank 1 was lost";
  logs[1].broke_it = true;

  for (const std::vector<std::string>& lines :
       {explain_flight(logs, cause), explain_flight(logs)}) {
    EXPECT_THAT(lines, Contains("rank 1 broke it: rank 1 was lost"));
    EXPECT_THAT(lines, Not(Contains(HasSubstr("rank 2 did not call"))));
  }
  EXPECT_THAT(explain_flight(behind_each_other()), Contains(HasSubstr("rank 2 did not call")))
      << "without a known cause";
}

TEST(FlightReport, BelievesTheJobRatherThanTheRankThatStoppedFirst) {
  std::vector<FlightLog> logs = behind_each_other();
  logs[0].broke_it = true;
  logs[0].message = "a peer has left";
  logs.pop_back();

  const auto lines = explain_flight(logs, "rank 2 was lost: its process ended");

  EXPECT_THAT(lines, Not(Contains(HasSubstr("broke it"))));
  EXPECT_THAT(lines, Contains("rank 0 stopped because: a peer has left"));
  EXPECT_THAT(lines, Contains("rank 2 left no record: it ended, or its host was lost"));
  EXPECT_THAT(lines, Not(Contains(HasSubstr("rank 1 did not call"))));
}

TEST(FlightReport, NamesTheRankThatHangsThoughAnotherEndedTheJob) {
  std::vector<FlightLog> logs = behind_each_other();
  logs[0].broke_it = true;
  logs[0].message = "rank 2 hangs: no sign of life for 60 s";

  EXPECT_THAT(explain_flight(logs), Contains(HasSubstr("rank 2 did not call operation 4")));
}

TEST(FlightReport, FindsNothingWhereAllCalledTheSame) {
  std::vector<FlightLog> logs;
  for (int rank = 0; rank < 3; ++rank)
    logs.push_back(log_of(rank, {call(1, 0, "barrier a at b:1")}));

  EXPECT_THAT(explain_flight(logs), Contains("every rank called the same operations"));
  EXPECT_TRUE(explain_flight({}).empty());
}

// The two ends of a message are calls of their own.
TEST(FlightReport, DoesNotCompareTheEndsOfMessages) {
  const auto lines = explain_flight(
      {log_of(0, {{1, 0, 1, "0-1", "message send at a:1", false}}), log_of(1, {}), log_of(2, {})});

  EXPECT_THAT(lines, Not(Contains(HasSubstr("did not call"))));
}

TEST(FlightReport, ReadsTheListsOfRanks) {
  EXPECT_THAT(ranks_of_list("0-2,8"), ElementsAre(0, 1, 2, 8));
  for (const char* text : {"", "0-", "a", "3-1", "0,...", "-1", "0-99999999"})
    EXPECT_TRUE(ranks_of_list(text).empty()) << text;
}

TEST(FlightReport, ReadsFilesAndNamesTheLineOfAMistake) {
  const files::TempDir folder;
  const auto path = folder.path() / "flight_rank_00001.jsonl";
  const std::string head =
      R"({"rank": 1, "ranks": 2, "step": 3, "state": 1, "posted": 9, "waits_for": 0, "broke_it": true, "message": "a \"b\""})";
  const std::string operation =
      R"({"number": 9, "step": 3, "ranks": "0-1", "sequence": 4, "what": "barrier x at y:1", "done": true})";
  files::write_atomic(path, head + "\n" + operation + "\n");

  const auto logs = read_flight_logs(folder.path());

  ASSERT_EQ(logs.size(), 1U);
  EXPECT_EQ(logs[0].rank, 1);
  EXPECT_EQ(logs[0].message, "a \"b\"");
  EXPECT_EQ(logs[0].host, "");
  ASSERT_EQ(logs[0].operations.size(), 1U);
  EXPECT_EQ(logs[0].operations[0].sequence, 4);
  EXPECT_TRUE(logs[0].operations[0].done);
  files::write_atomic(path, R"({"host": "node-b", )" + head.substr(1) + "\n");
  EXPECT_EQ(read_flight_logs(folder.path()).front().host, "node-b");
  files::write_atomic(path, R"({"host": 1, )" + head.substr(1) + "\n");
  EXPECT_THROW(read_flight_logs(folder.path()), Error);
  for (const std::string& text :
       {std::string("{}\n"), head + "\n{\"number\": 1}\n", head + "\n[\n", std::string()}) {
    files::write_atomic(path, text);
    EXPECT_THROW(read_flight_logs(folder.path()), Error) << text;
  }
}

}  // namespace
}  // namespace tessera::report
