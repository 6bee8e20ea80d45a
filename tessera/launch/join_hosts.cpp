// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/join_hosts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/launch/head.h"
#include "tessera/launch/master.h"
#include "tessera/launch/page_mirror.h"

namespace tessera::launch {
namespace {

/// State that a process keeps for its host. Not destroyed with static objects: other threads may
/// still run.
struct Session {
  std::optional<Head> head;
  std::optional<PageMirror> mirror;
};
Session* session = nullptr;

std::string name_of_this_host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

std::shared_ptr<const HostPart> part_of(const Launcher& launcher) {
  const std::optional<Master> master = find_master();
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

void join_hosts(const HostPart& part,
                const FactsOfHost& facts,
                double timeout_s,
                const RunFolderCheck& folder) {
  TESSERA_ASSERT(session == nullptr);
  session = new Session;
  if (part.first_rank == 0) {
    if (part.secret.guessable) {
      log::warn(
          "this job has no secret: whoever can reach " + part.master +
          " may join it; set TESSERA_SECRET_FILE on every host to a file with 32 random bytes "
          "that only you can read");
    }
    HeadOptions options;
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
    session->head.emplace(std::move(options));
    session->head->start();
  }
  session->mirror.emplace(std::make_shared<const HostPart>(part), facts, timeout_s, folder);
}

void mirror_page(ControlPage& control) {
  // Signals reach the ranks of a launcher's job through the launcher.
  session->mirror->start(control, [](int) {});
}

void leave_hosts() {
  if (session == nullptr) return;
  session->mirror.reset();
  if (session->head) session->head->wait_until_left();
  session->head.reset();
  delete session;
  session = nullptr;
}

}  // namespace tessera::launch
