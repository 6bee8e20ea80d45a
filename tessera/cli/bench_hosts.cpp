// SPDX-License-Identifier: Apache-2.0
// tessera bench hosts: simulates how the hosts of a job meet and how they learn of a loss.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/bench_commands.h"
#include "tessera/config/json.h"
#include "tessera/hosts/simulated_hosts.h"

namespace tessera::cli {
namespace {

constexpr double kPatienceS = 600.0;
constexpr double kTrainedS = 10.0;

struct HostsFlags {
  std::int64_t hosts = 4096, ranks_of_host = 1, seed = 1;
  double latency_ms = 0.2, loss = 0.001;
  Common common;
};

bool parse(HostsFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "bench hosts",
      "Simulates the hosts of a job in virtual time, on a network with delays and losses: how long "
      "they take to meet, how many messages each exchanges, and how long a loss takes to be known "
      "everywhere. The protocols are those of a job; nothing is started.",
      {"tessera bench hosts",
       "tessera bench hosts --hosts 512 --ranks 8 --latency 20 --loss 0.01"});
  arguments.option("--hosts", &words.hosts, "Number of hosts [4096]");
  arguments.option("--ranks", &words.ranks_of_host, "Ranks of each host [1]");
  arguments.option("--latency", &words.latency_ms, "Milliseconds in one direction [0.2]");
  arguments.option("--loss", &words.loss, "Share of messages that are sent again [0.001]");
  arguments.option("--seed", &words.seed, "Of delays and losses [1]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void check(const HostsFlags& words) {
  constexpr std::int64_t kMostHosts = 65536, kMostRanksOfHost = 1024, kMostRanksOfJob = 1 << 20;
  TESSERA_REQUIRE(words.hosts >= 2 && words.hosts <= kMostHosts,
                  Config,
                  fmt::format("--hosts {}: expected 2 to {}", words.hosts, kMostHosts),
                  "");
  TESSERA_REQUIRE(
      words.ranks_of_host >= 1 && words.ranks_of_host <= kMostRanksOfHost,
      Config,
      fmt::format("--ranks {}: expected 1 to {}", words.ranks_of_host, kMostRanksOfHost),
      "");
  TESSERA_REQUIRE(words.hosts * words.ranks_of_host <= kMostRanksOfJob,
                  Config,
                  fmt::format("--hosts {} with --ranks {}: expected at most {} ranks together",
                              words.hosts,
                              words.ranks_of_host,
                              kMostRanksOfJob),
                  "");
  TESSERA_REQUIRE(words.latency_ms >= 0 && words.latency_ms <= 1e4,
                  Config,
                  fmt::format("--latency {}: expected 0 to 10000 ms", words.latency_ms),
                  "");
  TESSERA_REQUIRE(words.loss >= 0 && words.loss <= 0.5,
                  Config,
                  fmt::format("--loss {}: expected 0 to 0.5", words.loss),
                  "");
}

json::Value traffic_json(const hosts::HostTraffic& traffic) {
  return json::Value::object({{"sent", json::Value::integer(traffic.sent)},
                              {"received", json::Value::integer(traffic.received)},
                              {"sent_bytes", json::Value::integer(traffic.sent_bytes)},
                              {"received_bytes", json::Value::integer(traffic.received_bytes)}});
}

}  // namespace

int bench_hosts(const std::vector<std::string>& line) {
  HostsFlags words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  hosts::SimulatedJob job;
  job.hosts = static_cast<int>(words.hosts);
  job.ranks_of_host = static_cast<int>(words.ranks_of_host);
  job.join_timeout_s = kPatienceS;
  hosts::SimulatedNetwork network;
  network.latency_s = words.latency_ms / 1e3;
  network.jitter_s = network.latency_s / 2;
  network.loss = words.loss;
  network.seed = static_cast<std::uint64_t>(words.seed);
  hosts::Timeline timeline;
  const double began = now_s();
  hosts::SimulatedHosts all(job, network, timeline);
  const bool met = timeline.run_until(kPatienceS, [&] { return all.num_ready() == job.hosts; });
  TESSERA_REQUIRE(met,
                  Comm,
                  fmt::format("the hosts did not meet within {:.0f} s", kPatienceS),
                  "lower --loss or --latency");
  const double join_s = timeline.now(), join_real_s = now_s() - began;
  const hosts::HostTraffic meeting = all.largest_traffic();
  // Every rank works on a step, and waits for its neighbour.
  const int ranks = job.hosts * job.ranks_of_host;
  for (int second = 0; second < static_cast<int>(kTrainedS); ++second) {
    for (int rank = 0; rank < ranks; ++rank)
      all.set_line(rank, second, (rank + 1) % ranks);
    timeline.run_until(join_s + second + 1);
  }
  hosts::HostTraffic later = all.largest_traffic();
  later.sent -= meeting.sent;
  later.received -= meeting.received;
  later.sent_bytes -= meeting.sent_bytes;
  later.received_bytes -= meeting.received_bytes;
  const double lost_at = timeline.now();
  all.lose(job.hosts / 2, /*ends_connection=*/true);
  const bool known =
      timeline.run_until(lost_at + kPatienceS, [&] { return all.num_broken() == job.hosts - 1; });
  const double loss_s = timeline.now() - lost_at, real_s = now_s() - began;
  if (words.common.json) {
    const json::Value out = json::Value::object({{"hosts", json::Value::integer(job.hosts)},
                                                 {"ranks", json::Value::integer(ranks)},
                                                 {"join_s", json::Value::number(join_s)},
                                                 {"join_real_s", json::Value::number(join_real_s)},
                                                 {"join", traffic_json(meeting)},
                                                 {"trained_s", json::Value::number(kTrainedS)},
                                                 {"training", traffic_json(later)},
                                                 {"loss_known", json::Value::boolean(known)},
                                                 {"loss_s", json::Value::number(loss_s)},
                                                 {"real_s", json::Value::number(real_s)}});
    std::printf("%s\n", out.dump(2).c_str());
    return kExitOk;
  }
  const auto traffic = [](const hosts::HostTraffic& of) {
    return fmt::format("a host sends at most {} messages ({}) and receives {} ({})",
                       of.sent,
                       text::bytes(static_cast<std::uint64_t>(of.sent_bytes)),
                       of.received,
                       text::bytes(static_cast<std::uint64_t>(of.received_bytes)));
  };
  std::printf("%s\n",
              fmt::format("hosts       {} of {} ranks, {:g} ms in one direction, {:g} % of the "
                          "messages are sent again\n"
                          "meeting     {:.3f} s; simulated in {:.2f} s; {}\n"
                          "training    in {:.0f} s {}\n"
                          "a loss      {} after {:.3f} s",
                          text::with_commas(job.hosts),
                          job.ranks_of_host,
                          words.latency_ms,
                          100 * words.loss,
                          join_s,
                          join_real_s,
                          traffic(meeting),
                          kTrainedS,
                          traffic(later),
                          known ? "is known everywhere" : "is not known everywhere",
                          loss_s)
                  .c_str());
  return kExitOk;
}

}  // namespace tessera::cli
