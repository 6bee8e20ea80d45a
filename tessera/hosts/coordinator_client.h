// SPDX-License-Identifier: Apache-2.0
// The connection of a host to the coordinator of its job: keeps the lines of other hosts' ranks on
// this host's control page up to date, and forwards the end of the world in both directions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_facts.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/run_folder_check.h"

namespace tessera::hosts {

/// The frame with which a host arrives; it has everything of `facts` but facts.facts, which follow
/// in a frame of their own.
FrameWriter join_frame(const HostPart& part, const HostFacts& facts);
FrameWriter facts_frame(const std::vector<Fact>& facts);
/// Reads what facts_frame() wrote. Throws Error{Comm}.
std::vector<Fact> read_facts(FrameReader& body);

/// The message of a host that arrives.
struct Arrival {
  int host = 0, world = 0;  ///< its index, and the number of ranks of its job
  HostFacts facts;
};
/// Reads what join_frame() wrote. Throws Error{Comm} if the frame is too short.
Arrival read_join(FrameReader& body);

/// A problem in a frame: kind, what, fix.
FrameWriter& write_problem(FrameWriter& frame, const HostProblem& problem);
HostProblem read_problem(FrameReader& body);

/// The refusal of the coordinator, which the process that started the agents tells the user.
class Refusal : public Error {
 public:
  using Error::Error;
};

/// One for each host, in its agent or in its local rank 0. The lines that it receives are as old as
/// its interval: 0.1 s on up to eight hosts, at most 1 s. Threads: one of its own after start().
class CoordinatorClient final : public launch::JobConnection {
 public:
  /// Connects to the coordinator, tells it the facts of this host, and waits until all hosts have
  /// arrived and agree. Throws Error{Comm} if their arrival takes longer than `timeout_s`, and the
  /// Refusal of the coordinator, if there is one. Starts no thread, so that processes may be forked
  /// afterwards. Before that, this host tries to reach others (host_check.h) and looks for the run
  /// folder.
  CoordinatorClient(std::shared_ptr<const HostPart> part,
                    const FactsOfHost& facts,
                    double timeout_s,
                    const RunFolderCheck& folder = {});
  /// Tells the coordinator that the ranks of this host have ended.
  ~CoordinatorClient() override;

  /// Returns the address of this host on the way to the coordinator.
  [[nodiscard]] std::string own_address() const { return client_.own_address(); }
  /// Starts the thread. `control` has a line for every rank of the job, and must outlive this
  /// object. `on_stop` is called, in that thread, for each signal that the coordinator passes on.
  void start(ControlPage& control, std::function<void(int signal)> on_stop) override;
  /// Tells the coordinator, when this object is destroyed, how the first rank of the job failed.
  void report(const Error& failure) override { report_ = problem_of(failure); }

 private:
  void answer_probe(const Frame& frame, const RunFolderCheck& folder);
  void tell_facts(const FactsOfHost& facts);
  void show_life();
  void run();
  void obey(const Frame& frame);
  void send_changes(double now);
  void break_off(const std::string& how);

  std::shared_ptr<const HostPart> part_;
  FrameClient client_;
  ControlPage* control_ = nullptr;
  std::function<void(int)> on_stop_;
  std::vector<std::string>
      sent_;  ///< the last line of each local rank that the coordinator received
  double interval_s_, looked_ = 0.0, spoke_ = 0.0, heard_ = 0.0;
  bool told_abort_ = false;
  std::optional<HostProblem> report_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace tessera::hosts
