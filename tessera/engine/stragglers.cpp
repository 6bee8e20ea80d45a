// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/stragglers.h"

#include <algorithm>
#include <utility>

#include "tessera/base/median.h"

namespace tessera::engine {
namespace {

constexpr double kSlowRatio = 1.25;
constexpr double kSlowPeriodS = 2.0;
constexpr int kSlowPeriods = 3;

}  // namespace

StragglerFinder::StragglerFinder(std::vector<int> work, std::vector<int> hosts)
    : work_(std::move(work)), hosts_(std::move(hosts)), sums_(work_.size()) {}

std::optional<Straggler> StragglerFinder::add(std::span<const RankTimes> times, double wall_s) {
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) {
    sums_[rank].own += times[rank].own;
    for (std::size_t part = 0; part < kStepParts.size(); ++part)
      sums_[rank].parts[part] += times[rank].parts[part];
  }
  wall_s_ += wall_s;
  if (wall_s_ < kSlowPeriodS) return std::nullopt;
  wall_s_ = 0.0;
  const std::optional<Straggler> found = slowest();
  std::fill(sums_.begin(), sums_.end(), RankTimes());
  const std::pair<int, int> suspect =
      found ? std::pair(found->host, found->host < 0 ? found->rank : -1) : std::pair(-1, -1);
  periods_ = found && suspect == suspect_ ? periods_ + 1 : 1;
  suspect_ = suspect;
  if (!found || periods_ < kSlowPeriods || !told_.insert(suspect).second) return std::nullopt;
  return found;
}

std::optional<Straggler> StragglerFinder::slowest() const {
  std::vector<double> ratios(sums_.size());
  for (std::size_t rank = 0; rank < ratios.size(); ++rank)
    ratios[rank] = ratio_of(static_cast<int>(rank));
  const auto worst = std::max_element(ratios.begin(), ratios.end());
  if (worst == ratios.end() || *worst < kSlowRatio) return std::nullopt;
  Straggler found;
  found.rank = static_cast<int>(worst - ratios.begin());
  found.ratio = *worst;
  found.part = part_of(found.rank, found.ratio);
  const int host = hosts_[static_cast<std::size_t>(found.rank)];
  bool others = false, all = true;
  for (std::size_t rank = 0; rank < ratios.size(); ++rank) {
    if (hosts_[rank] != host) others = true;
    if (hosts_[rank] == host && ratios[rank] < kSlowRatio) all = false;
  }
  if (others && all) found.host = host;
  return found;
}

template <class Value>
double StragglerFinder::median_of_peers(int rank, Value value) const {
  std::vector<double> values;
  for (std::size_t peer = 0; peer < sums_.size(); ++peer) {
    if (static_cast<int>(peer) != rank && work_[peer] == work_[static_cast<std::size_t>(rank)])
      values.push_back(value(sums_[peer]));
  }
  return values.empty() ? 0.0 : median_of(std::move(values));
}

double StragglerFinder::ratio_of(int rank) const {
  const double peers = median_of_peers(rank, [](const RankTimes& times) { return times.own; });
  return peers > 0.0 ? sums_[static_cast<std::size_t>(rank)].own / peers : 1.0;
}

/// The part with the largest excess over the peers, if that is most of the rank's excess; `ratio`
/// is then that of the part.
std::string StragglerFinder::part_of(int rank, double& ratio) const {
  const RankTimes& mine = sums_[static_cast<std::size_t>(rank)];
  const double excess =
      mine.own - median_of_peers(rank, [](const RankTimes& times) { return times.own; });
  double most = excess / 2;
  std::string name;
  for (std::size_t part = 0; part < kStepParts.size(); ++part) {
    const double peers =
        median_of_peers(rank, [part](const RankTimes& times) { return times.parts[part]; });
    if (peers <= 0.0 || mine.parts[part] - peers <= most) continue;
    most = mine.parts[part] - peers;
    ratio = mine.parts[part] / peers;
    name = kStepParts[part];
  }
  return name;
}

}  // namespace tessera::engine
