// SPDX-License-Identifier: Apache-2.0
// The one error with which a job on several hosts ends, for each way in which it may end.
#include "tessera/hosts/job_end.h"

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::hosts {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int exited(int code) {
  return code << 8;
}
HostProblem problem(const std::string& what) {
  return {Error::Kind::Data, what, "do something"};
}

struct Case {
  std::string claim;
  JobEnd end;
  std::vector<std::string> told;  ///< parts of the error
  std::vector<std::string> not_told = {};
};

JobEnd ends(std::vector<HostEnd> hosts) {
  return {.hosts = std::move(hosts), .program = "/opt/tessera", .folder = "/home/me"};
}
JobEnd ends_with(std::vector<HostEnd> hosts, const std::function<void(JobEnd&)>& change) {
  JobEnd end = ends(std::move(hosts));
  change(end);
  return end;
}

std::vector<Case> cases() {
  const HostEnd fine{"node-a", exited(0)}, killed{"node-a", SIGKILL, true};
  return {
      {"a host that ssh cannot reach",
       ends({killed, {"node-b", exited(255)}}),
       {"host node-b: ssh cannot reach it", "ssh HOST hostname"},
       {"node-a"}},
      {"a folder that a host has not",
       ends({killed, {"node-b", exited(kNoFolder)}}),
       {"host node-b: it has no folder /home/me"}},
      {"a program that no host has",
       ends({{"node-a", exited(127)}, {"node-b", exited(127)}}),
       {"hosts node-a, node-b: it has no program /opt/tessera"}},
      {"hosts that ssh cannot reach",
       ends({{"node-a", exited(255)}, {"node-b", exited(255)}}),
       {"hosts node-a, node-b: ssh cannot reach it"}},
      {"an agent that was killed",
       ends({killed, {"node-b", SIGKILL}}),
       {"host node-b: its agent was ended by signal 9 (SIGKILL)"},
       {"node-a"}},
      {"an agent that ended without a word",
       ends({fine, {"node-b", exited(7)}}),
       {"host node-b: its agent ended with exit code 7"}},
      {"one mistake of several hosts",
       ends({{"node-a", exited(3), false, problem("there is no file a.txt")},
             {"node-b", exited(3), false, problem("there is no file a.txt")}}),
       {"hosts node-a, node-b: there is no file a.txt", "do something"}},
      {"different mistakes",
       ends({{"node-a", exited(3), false, problem("no a")}, {"node-b", exited(255)}}),
       {"the hosts have 2 problems", "host node-a: no a", "host node-b: ssh cannot reach it"}},
      {"hosts that do not agree",
       ends_with({{"node-a", exited(2)}, {"node-b", exited(2)}},
                 [](JobEnd& end) { end.refusal = problem("data.train differs"); }),
       {"data.train differs"},
       {"exit code"}},
      {"a host with a mistake, because of which the others were refused",
       ends_with(
           {{"node-a", exited(6)}, {"node-b", exited(3), false, problem("no file")}},
           [](JobEnd& end) { end.refusal = problem("host node-b left while the hosts met"); }),
       {"host node-b: no file"},
       {"while the hosts met"}},
      {"hosts behind an ssh that stays silent",
       ends_with({killed, {"node-b", SIGKILL, true}},
                 [](JobEnd& end) { end.refusal = problem("hosts node-a, node-b did not arrive"); }),
       {"hosts node-a, node-b did not arrive", "do something"}},
      {"a rank that failed",
       ends_with({{"node-a", exited(6)}, {"node-b", exited(6)}},
                 [](JobEnd& end) {
                   end.met = true;
                   end.report = problem("rank 2 was lost; its host is node-b");
                   end.broken = problem("rank 2 was lost");
                 }),
       {"rank 2 was lost; its host is node-b"},
       {"agent"}},
      {"a host that was lost, so that nobody reports",
       ends_with({killed, {"node-b", exited(255)}},
                 [](JobEnd& end) {
                   end.met = true;
                   end.broken = problem("host node-b was lost (ranks 2 to 3)");
                 }),
       {"host node-b was lost (ranks 2 to 3)"}}};
}

TEST(ErrorOfAJob, NamesTheCauseAndWhatToDo) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.claim);

    const auto error = error_of_job(one.end);

    ASSERT_TRUE(error);
    const std::string text = error->what + " / " + error->fix;
    EXPECT_FALSE(error->fix.empty());
    for (const std::string& part : one.told)
      EXPECT_THAT(text, HasSubstr(part));
    for (const std::string& part : one.not_told)
      EXPECT_THAT(text, Not(HasSubstr(part)));
  }
}

TEST(ErrorOfAJob, IsAbsentIfAllEndedInOrder) {
  EXPECT_FALSE(error_of_job(ends({{"node-a", exited(0)}, {"node-b", exited(75)}})));
}

}  // namespace
}  // namespace tessera::hosts
