// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/flight.h"

#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FlightRing, KeepsTheLastOperationsInOrder) {
  auto ring = std::make_unique<FlightRing>();
  const std::size_t many = FlightRing::kEntries + 5;
  for (std::size_t i = 1; i <= many; ++i)
    ring->post(i, i - 1, 3, "0-1", "all_reduce number " + std::to_string(i));
  ring->finish(many);
  ring->finish(1);  // was overwritten

  const auto records = read_flight(*ring);

  ASSERT_EQ(records.size(), FlightRing::kEntries);
  EXPECT_EQ(records.front().number, 6U);
  EXPECT_EQ(records.back().what, "all_reduce number " + std::to_string(many));
  EXPECT_EQ(records.back().ranks, "0-1");
  EXPECT_EQ(records.back().sequence, many - 1);
  EXPECT_TRUE(records.back().done);
  EXPECT_FALSE(records.front().done);
}

TEST(FlightRing, CutsLongTexts) {
  auto ring = std::make_unique<FlightRing>();
  ring->post(1, 0, 0, std::string(500, 'r'), std::string(500, 'w'));

  const auto records = read_flight(*ring);

  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].ranks.size(), sizeof(FlightEntry::ranks) - 1);
  EXPECT_EQ(records[0].what.size(), sizeof(FlightEntry::what) - 1);
}

TEST(FlightRing, WritesRanksInShort) {
  EXPECT_EQ(short_list({0, 1, 2, 8}), "0-2,8");
  EXPECT_EQ(short_list({5}), "5");
  std::vector<int> scattered;
  for (int rank = 0; rank < 100; rank += 2)
    scattered.push_back(rank);
  EXPECT_THAT(short_list(scattered), testing::EndsWith(",..."));
  EXPECT_LT(short_list(scattered).size(), sizeof(FlightEntry::ranks));
}

TEST(FlightFiles, AreWrittenWhenTheWorldBreaks) {
  const files::TempDir folder;
  set_flight_folder(folder.path().string(), "node-\"a\"");
  EXPECT_THROW(run_threads(2,
                           [](World& world) {
                             world.set_step(7);
                             std::vector<double> one = {1.0};
                             world.all_reduce(world.everyone(), one, Op::Sum, TESSERA_HERE("both"));
                             if (world.rank() == 1) {
                               while (world.control().line(0).last_seq < 2)
                                 std::this_thread::yield();
                               throw Error(Error::Kind::Numeric, "nan");
                             }
                             world.all_reduce(
                                 world.everyone(), one, Op::Sum, TESSERA_HERE("alone"));
                           }),
               Error);
  set_flight_folder("");

  const std::string waiting = files::read(folder.path() / "flight_rank_00000.jsonl");
  EXPECT_THAT(waiting,
              AllOf(HasSubstr(R"("rank": 0, "ranks": 2, "step": 7)"),
                    HasSubstr(R"("host": "node-\"a\"", "broke_it": false, "message": "nan")"),
                    HasSubstr("all_reduce both at"),
                    HasSubstr("all_reduce alone at")));
  EXPECT_THAT(waiting, HasSubstr("\"sequence\": 0, \"what\": \"all_reduce both at "));
  // The rank that threw waits for nothing; the rank that waits writes its record.
  const std::string broke = files::read(folder.path() / "flight_rank_00001.jsonl");
  EXPECT_THAT(broke, AllOf(HasSubstr(R"("broke_it": true)"), HasSubstr("all_reduce both at")));
  EXPECT_EQ(broke.find("alone"), std::string::npos);
}

}  // namespace
}  // namespace tessera::comm
