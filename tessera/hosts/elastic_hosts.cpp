// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/elastic_hosts.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/absent_hosts.h"
#include "tessera/hosts/copy_servers.h"
#include "tessera/hosts/ssh_reach.h"
#include "tessera/launch/rank_end.h"
#include "tessera/launch/supervisor.h"

namespace tessera::hosts {
namespace {

/// The first `slots` of the hosts' slots, as equally many of each as it has; hosts that get none
/// are left out.
HostPool share_slots(HostPool pool, int slots) {
  std::vector<std::size_t> taken(pool.size(), 0);
  for (bool more = true; more && slots > 0;) {
    more = false;
    for (std::size_t i = 0; i < pool.size() && slots > 0; ++i) {
      if (taken[i] == pool[i].slots.size()) continue;
      ++taken[i];
      --slots;
      more = true;
    }
  }
  for (std::size_t i = 0; i < pool.size(); ++i)
    pool[i].slots.resize(taken[i]);
  std::erase_if(pool, [](const HostSlots& host) { return host.slots.empty(); });
  return pool;
}

/// Processes on hosts that are reached over ssh.
class RealWorld final : public ElasticWorld {
 public:
  explicit RealWorld(const RemoteOptions& options) : reach_(options) {}
  HostsEnd run(const RemoteOptions& options) override { return run_job_on_hosts(options); }
  [[nodiscard]] double now() const override { return now_s(); }
  void sleep(double seconds) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  void try_to_reach(const std::string& host) override { reach_.try_to_reach(host); }
  std::optional<bool> reached(const std::string& host) override { return reach_.reached(host); }

 private:
  SshReach reach_;
};

class ElasticJob {
 public:
  ElasticJob(const RemoteOptions& options, const ElasticOptions& elastic, ElasticWorld& world)
      : options_(options), elastic_(elastic), world_(world), absent_(world, elastic.probe_s) {
    if (!options_.secret) options_.secret = random_secret();
    if (elastic.peer_copies) copies_.emplace(options_);
  }

  HostsEnd run() {
    std::optional<ElasticChoice> choice = choose_hosts_of(options_.pool, elastic_);
    TESSERA_REQUIRE(
        choice.has_value(),
        Config,
        fmt::format("no number of the {} slots of {} to {} hosts can share the global batch",
                    num_slots(options_.pool),
                    least_hosts(),
                    options_.pool.size()),
        "lower run.min_hosts, or choose another train_batch_size or micro-batch");
    for (int restarts = 0;; ++generation_) {
      const HostsEnd end = start(*choice);
      if (end.stopped) return end;
      // A pause before the first step has nothing to save.
      const bool paused = std::exchange(paused_, false) &&
                          (end.code == kExitStopped || end.code == kExitTerminated);
      const bool was_lost = !end.lost.empty() || end.code == tessera::exit_code(Error::Kind::Comm);
      if (!paused && (!was_lost || restarts++ >= elastic_.restarts)) return end;
      if (end.error) options_.notice(end.error->what);
      absent_.welcome();
      for (const std::string& name : end.lost)
        absent_.add(name, world_.now());
      if (copies_) copies_->forget(end.lost);
      choice = wait_for_enough();
      if (!choice) return too_few(end);
      if (copies_) found_ = copies_->find();
      say_next(*choice, paused);
    }
  }

 private:
  /// The end of a job that cannot go on, because too few hosts are left.
  [[nodiscard]] HostsEnd too_few(HostsEnd end) const {
    std::vector<std::string> left;
    for (const HostSlots& host : absent_.left(options_.pool, false))
      left.push_back(host.name);
    const std::string cause = end.error ? ": " + end.error->what : "";
    end.error = HostProblem{
        launch::kind_of(end.code),
        fmt::format("{} of {} hosts {} left, and at least {} are needed (run.min_hosts){}",
                    left.size(),
                    options_.pool.size(),
                    left.size() == 1 ? "is" : "are",
                    least_hosts(),
                    cause),
        "bring the lost hosts back and start the job again: it goes on from the newest checkpoint; "
        "or lower run.min_hosts"};
    end.code = tessera::exit_code(end.error->kind);
    return end;
  }

  HostsEnd start(const ElasticChoice& choice) {
    RemoteOptions now = options_;
    now.pool = choice.pool;
    now.words.insert(now.words.end(), choice.words.begin(), choice.words.end());
    now.generation = generation_;
    ranks_ = num_slots(choice.pool);
    started_at_ = world_.now();
    now.pause = [this] { return more_hosts(); };
    if (copies_) {
      copies_->start(choice.pool);
      now.copies = [this, &choice](int host) {
        return copies_->part_of(choice.pool, host, found_.complete);
      };
    }
    return world_.run(now);
  }

  /// Returns true if a host that came back makes more ranks possible.
  bool more_hosts() {
    show_life();
    const bool changed = absent_.look(world_.now());
    news_ = news_ || changed;
    if (!news_ || world_.now() < started_at_ + elastic_.min_time_s) return false;
    news_ = false;
    const auto larger = choose_hosts_of(absent_.left(options_.pool, true), elastic_);
    paused_ = larger && num_slots(larger->pool) > ranks_;
    return paused_;
  }

  /// Waits for absent hosts if those that are left are too few. Returns nothing if it gives up.
  std::optional<ElasticChoice> wait_for_enough() {
    auto choice = choose_hosts_of(absent_.left(options_.pool, false), elastic_);
    if (choice || absent_.none()) return choice;
    options_.notice(fmt::format("the hosts that are left are too few; waiting for others for {} s",
                                elastic_.patience_s));
    const double deadline = world_.now() + elastic_.patience_s;
    while (!choice && world_.now() < deadline) {
      world_.sleep(kTickS);
      show_life();
      if (!absent_.look(world_.now())) continue;
      absent_.welcome();
      choice = choose_hosts_of(absent_.left(options_.pool, false), elastic_);
    }
    return choice;
  }

  void say_next(const ElasticChoice& choice, bool paused) const {
    options_.notice(fmt::format("{}: {} of {} hosts, {} ranks, from {}: {}",
                                paused ? "a host came back, and the job goes on with it"
                                       : "the job goes on without what was lost",
                                choice.pool.size(),
                                options_.pool.size(),
                                num_slots(choice.pool),
                                paused ? "the newest checkpoint" : where_from(),
                                describe(choice.pool)));
  }

  /// If the disk has a newer checkpoint, the ranks take that one.
  [[nodiscard]] std::string where_from() const {
    const std::string disk = "the newest checkpoint";
    if (!copies_) return disk;
    if (found_.complete.exists())
      return fmt::format("the copies of step {} in memory", found_.complete.step);
    if (!found_.newest.exists()) return disk + ", because there are no copies in memory";
    return fmt::format("{}, because the copies of step {} in memory lack those of {} {}",
                       disk,
                       found_.newest.step,
                       found_.missing,
                       found_.missing == 1 ? "rank" : "ranks");
  }

  void show_life() {
    if (!copies_ || world_.now() < life_shown_at_ + kLifeS) return;
    life_shown_at_ = world_.now();
    copies_->show_life();
  }

  [[nodiscard]] std::size_t least_hosts() const {
    return elastic_.min_hosts > 0 ? static_cast<std::size_t>(elastic_.min_hosts)
                                  : options_.pool.size();
  }

  static constexpr double kLifeS = 5.0;
  static constexpr double kTickS = 0.05;

  RemoteOptions options_;
  ElasticOptions elastic_;
  ElasticWorld& world_;
  AbsentHosts absent_;
  std::optional<CopyServers> copies_;
  FoundCopies found_;
  double life_shown_at_ = 0.0;
  int generation_ = 0;
  int ranks_ = 0;
  double started_at_ = 0.0;
  bool news_ = false, paused_ = false;
};

}  // namespace

std::optional<ElasticChoice> choose_hosts_of(const HostPool& pool, const ElasticOptions& options) {
  HostPool hosts = pool;
  if (options.max_hosts > 0 && hosts.size() > static_cast<std::size_t>(options.max_hosts))
    hosts.resize(static_cast<std::size_t>(options.max_hosts));
  const int least = std::max(1, options.min_hosts);
  for (int ranks = num_slots(hosts); ranks >= least; --ranks) {
    auto words = options.words(ranks);
    if (!words) continue;
    HostPool shared = share_slots(hosts, ranks);
    if (shared.size() >= static_cast<std::size_t>(least))
      return ElasticChoice{std::move(shared), std::move(*words)};
  }
  return std::nullopt;
}

HostsEnd run_elastic(const RemoteOptions& options,
                     const ElasticOptions& elastic,
                     ElasticWorld& world) {
  ElasticOptions bounded = elastic;
  if (bounded.min_hosts == 0) bounded.min_hosts = static_cast<int>(options.pool.size());
  return ElasticJob(options, bounded, world).run();
}

HostsEnd run_elastic(const RemoteOptions& options, const ElasticOptions& elastic) {
  RealWorld world(options);
  return run_elastic(options, elastic, world);
}

}  // namespace tessera::hosts
