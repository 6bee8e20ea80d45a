// SPDX-License-Identifier: Apache-2.0
// One rank's view of the job: its rank, its mesh, its groups and the transport between the ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"
#include "tessera/mesh/mesh.h"

namespace tessera::comm {

/// A rank of a running job. Two worlds can exist in one process. Threads: that of the rank.
class World {
 public:
  /// Takes no ownership of `control`, which must outlive the world.
  World(int rank, mesh::Mesh mesh, std::unique_ptr<Transport> transport, ControlPage* control);
  /// Shares the ownership of `control`.
  World(int rank,
        mesh::Mesh mesh,
        std::unique_ptr<Transport> transport,
        std::shared_ptr<ControlPage> control);
  /// As above for a model on a device: `tensors` moves memory of the device, and `host` moves the
  /// numbers on which the ranks agree.
  World(int rank,
        mesh::Mesh mesh,
        std::shared_ptr<Transport> host,
        std::shared_ptr<Transport> tensors,
        std::shared_ptr<ControlPage> control);
  ~World();
  /// Returns a world of the ranks from `first` on, as many as `mesh` has, of which this rank is
  /// one. They count from 0 in it and use the transports of this world, on which they can form
  /// other parts and whole groups at the same time. `number`: 1 or more, the same on all ranks of
  /// the part, and another one for each part of the job that a rank is in, whether it was made of
  /// the whole job or of a part. Not collective.
  std::unique_ptr<World> part(int first, const mesh::Mesh& mesh, int number);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return mesh_.size(); }
  [[nodiscard]] bool is_leader() const { return rank_ == 0; }
  [[nodiscard]] const mesh::Mesh& mesh() const { return mesh_; }
  /// Moves the memory of the model's tensors: weights, gradients, and data that layers exchange.
  [[nodiscard]] Transport& transport() { return tensors_ ? *tensors_ : *host_transport_; }
  /// Moves memory of the host; the same as transport() unless the model is on a device.
  [[nodiscard]] Transport& host_transport() { return *host_transport_; }
  [[nodiscard]] ControlPage& control() { return *control_; }
  /// Returns the group of this rank over `axes`; it is created on first use and kept. Groups are
  /// only created here.
  const Group& group(mesh::AxisSet axes);
  const Group& everyone() { return group(mesh::AxisSet::all()); }

  /// Identifies the host of this rank, and the rank among those of its host.
  struct Host {
    int index = 0, count = 1, local_rank = 0;
  };
  [[nodiscard]] const Host& host() const { return host_; }
  void set_host(const Host& host) { host_ = host; }

  /// Sets the step that this rank works on, for reports.
  void set_step(std::int64_t step);
  /// Signals to waiting peers that this rank makes progress, between pieces of work that post
  /// nothing.
  void show_life() noexcept;
  /// Signals to waiting peers that this rank is alive, although it makes no progress.
  void keep_alive() noexcept;

  /// Waits until every rank of the world has called it, whatever device the model is on.
  void barrier(CallSite site);
  /// Reduces a few values; complete on return. BitOr takes whole numbers.
  std::vector<double> all_reduce(const Group& group,
                                 std::vector<double> values,
                                 Op op,
                                 CallSite site);
  /// Returns the values of every member in group order: size() * values.size() doubles.
  std::vector<double> all_gather(const Group& group,
                                 const std::vector<double>& values,
                                 CallSite site);

 private:
  friend class ActivityScope;
  World(const World& whole, int first, const mesh::Mesh& mesh, int number);
  /// The entry of this rank on the control page.
  [[nodiscard]] RankLine& line() { return control_->line(first_ + rank_); }

  int rank_;
  int first_ = 0;  ///< rank in the job of rank 0 of this world
  int part_ = 0;   ///< number of this part; 0: the whole job
  mesh::Mesh mesh_;
  Host host_;
  std::shared_ptr<ControlPage> control_;  ///< outlives the transports
  std::shared_ptr<Transport> host_transport_;
  std::shared_ptr<Transport> tensors_;  ///< nullptr: the model is on the host
  std::map<std::uint16_t, Group> groups_;
};

/// As long as it lives, the hang watch (launch/hang_watch.h) names this activity of the rank if it
/// makes no progress. Threads: that of the rank.
class ActivityScope {
 public:
  ActivityScope(World& world, Activity activity) noexcept;
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  RankLine& line_;
  std::uint32_t before_;
};

/// Returns a control page in private memory.
std::shared_ptr<ControlPage> private_control_page(int ranks);
/// Returns a world of one rank: every collective is a copy or does nothing.
std::unique_ptr<World> solo_world();
/// Runs `fn` on N ranks that are N threads of this process, over the `threads` transport: for tests
/// and debuggers. Each rank has its own ledger. Rethrows the first error. A rank that throws aborts
/// the world, so that the others stop too.
void run_threads(int ranks, const std::function<void(World&)>& fn);
void run_threads(const mesh::Mesh& mesh, const std::function<void(World&)>& fn);

}  // namespace tessera::comm
