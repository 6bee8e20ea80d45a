// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/join_hosts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/hosts/coordinator.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/master_address.h"

namespace tessera::hosts {
namespace {

/// The connection of a host whose ranks another launcher started.
class LauncherConnection final : public launch::JobConnection {
 public:
  std::optional<Coordinator> coordinator;
  std::optional<CoordinatorClient> client;

  ~LauncherConnection() override {
    client.reset();
    if (coordinator) coordinator->wait_until_left();
  }
  void start(ControlPage& control, std::function<void(int)> /*on_stop*/) override {
    client->start(control, [](int) {});
  }
  void report(const Error& failure) override { client->report(failure); }
};

std::string name_of_this_host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

std::shared_ptr<const HostPart> part_of(const launch::Launcher& launcher) {
  const std::optional<MasterAddress> master = find_master_address();
  TESSERA_REQUIRE(
      master.has_value(),
      Config,
      fmt::format("{} started {} ranks on several hosts, and nothing says where they meet",
                  launcher.name,
                  launcher.world_size),
      "export MASTER_ADDR=<address of the host of rank 0> on every host (mpirun -x "
      "MASTER_ADDR passes it on)");
  auto part = std::make_shared<HostPart>();
  part->first_rank = launcher.first_rank();
  part->local_ranks = launcher.local_world_size;
  part->world_size = launcher.world_size;
  // Exact if every host has as many ranks; host 0 is the one of rank 0 in any case.
  part->host = part->first_rank / part->local_ranks;
  part->hosts = (part->world_size + part->local_ranks - 1) / part->local_ranks;
  part->name = name_of_this_host();
  part->master = master->address;
  part->port = master->port;
  part->head_in_rank_0 = true;
  part->secret = shared_secret(
      fmt::format("{} {}:{} {}", launcher.world_size, master->address, master->port, getuid()));
  return part;
}

std::unique_ptr<launch::JobConnection> join_hosts(const HostPart& part,
                                                  const FactsOfHost& facts,
                                                  double timeout_s,
                                                  const RunFolderCheck& folder) {
  // If the hosts do not meet, the coordinator sends them the reason until this process ends.
  auto* const connection = new LauncherConnection;
  if (part.first_rank == 0) {
    if (part.secret.guessable) {
      log::warn(
          "this job has no secret: everyone who can reach " + part.master +
          " may join it; set TESSERA_SECRET_FILE on every host to a file with 32 random bytes "
          "that only you can read");
    }
    CoordinatorOptions options;
    options.address = part.master;
    options.port = part.port;
    options.ports = kMasterPorts;
    options.secret = part.secret;
    options.world_size = part.world_size;
    options.join_timeout_s = timeout_s;
    options.notice = [](const std::string& text) { log::warn(text); };
    options.table = [](const std::vector<std::string>& lines) {
      for (const std::string& line : lines)
        log::info(line);
    };
    connection->coordinator.emplace(std::move(options));
    connection->coordinator->start();
  }
  connection->client.emplace(std::make_shared<const HostPart>(part), facts, timeout_s, folder);
  return std::unique_ptr<launch::JobConnection>(connection);
}

}  // namespace tessera::hosts
