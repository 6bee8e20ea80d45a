// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/hooks/stragglers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/launch/machine.h"

namespace tessera::engine {
namespace {

constexpr std::int64_t kGatherEvery = 10;
constexpr std::size_t kHostLetters = 48;
constexpr std::size_t kTimesOfRank = kStepParts.size() + 1;

/// Encodes the letters of a name as numbers, which ranks can exchange.
std::vector<double> letters_of(const std::string& name) {
  std::vector<double> letters(kHostLetters, 0.0);
  for (std::size_t i = 0; i < std::min(name.size(), kHostLetters); ++i)
    letters[i] = static_cast<unsigned char>(name[i]);
  return letters;
}

std::string host_name_of(const double* letters) {
  std::string name;
  for (std::size_t i = 0; i < kHostLetters && letters[i] > 0; ++i)
    name += static_cast<char>(letters[i]);
  return name;
}

}  // namespace

void StragglerHook::before_train(Trainer& trainer) {
  comm::World& world = trainer.engine().world();
  if (world.size() == 1) return;
  const comm::World::Host& host = world.host();
  const std::vector<double> hosts = world.all_gather(
      world.everyone(), {static_cast<double>(host.index)}, TESSERA_HERE("hosts of the ranks"));
  const std::vector<double> letters =
      world.all_gather(world.everyone(),
                       letters_of(host.count > 1 ? launch::machine().host : ""),
                       TESSERA_HERE("names of the hosts"));
  std::vector<int> work;
  for (int rank = 0; rank < world.size(); ++rank) {
    work.push_back(world.mesh().coordinate(rank, mesh::Axis::Pp));
    hosts_.push_back(static_cast<int>(hosts[static_cast<std::size_t>(rank)]));
    names_.push_back(host_name_of(letters.data() + static_cast<std::size_t>(rank) * kHostLetters));
  }
  finder_ = std::make_unique<StragglerFinder>(std::move(work), hosts_);
}

void StragglerHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (!finder_) return;
  const std::array<double, kStepParts.size()> parts = {
      report.data_s, report.forward_s, report.backward_s, report.optimizer_s};
  for (std::size_t part = 0; part < parts.size(); ++part)
    mine_.parts[part] += parts[part];
  mine_.own += report.seconds - report.comm_s;
  wall_s_ += report.seconds;
  if (report.step % kGatherEvery != 0) return;
  comm::World& world = trainer.engine().world();
  std::vector<double> values(mine_.parts.begin(), mine_.parts.end());
  values.push_back(mine_.own);
  const std::vector<double> all =
      world.all_gather(world.everyone(), values, TESSERA_HERE("times of the ranks"));
  std::vector<RankTimes> times(static_cast<std::size_t>(world.size()));
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    for (std::size_t part = 0; part < kStepParts.size(); ++part)
      times[rank].parts[part] = all[rank * kTimesOfRank + part];
    times[rank].own = all[rank * kTimesOfRank + kStepParts.size()];
  }
  const auto found = finder_->add(times, wall_s_);
  mine_ = RankTimes();
  wall_s_ = 0.0;
  if (found && world.is_leader()) tell(world, *found);
}

void StragglerHook::tell(comm::World& world, const Straggler& found) const {
  const std::string& name = names_[static_cast<std::size_t>(found.rank)];
  std::string who = fmt::format("rank {}", found.rank);
  if (found.host >= 0) {
    int first = -1, last = -1;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (hosts_[static_cast<std::size_t>(rank)] != found.host) continue;
      if (first < 0) first = rank;
      last = rank;
    }
    who = fmt::format("host {} (ranks {}-{})", name, first, last);
  } else if (world.host().count > 1) {
    who += " on host " + name;
  }
  log::warn(
      fmt::format("{}: {:.1f}x slower{}{} than ranks with the same work; all ranks wait for "
                  "it. See what else runs there, and whether its processors are throttled",
                  who,
                  found.ratio,
                  found.part.empty() ? "" : " in ",
                  found.part));
}

}  // namespace tessera::engine
