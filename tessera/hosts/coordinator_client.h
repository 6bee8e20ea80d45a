// SPDX-License-Identifier: Apache-2.0
// The connection of a host to the coordinator of its job: keeps the lines of other hosts' ranks on
// this host's control page up to date, and forwards the end of the world in both directions.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/host_protocol.h"
#include "tessera/hosts/run_folder_check.h"

namespace tessera::hosts {

/// Runs a HostProtocol on a socket; one for each host, in its agent or in its local rank 0. The
/// lines that it receives are at most two intervals old, one of their host and one of the
/// coordinator: 0.1 s each on up to eight hosts, at most 1 s. On more than 32 hosts it receives
/// those that its ranks need (rank_lines.h). Threads: one of its own after start().
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
  [[nodiscard]] std::string own_address() const { return link_.client().own_address(); }
  /// Starts the thread. `control` has a line for every rank of the job, and must outlive this
  /// object. `on_stop` is called, in that thread, for each signal that the coordinator passes on.
  void start(ControlPage& control, std::function<void(int signal)> on_stop) override;
  /// Tells the coordinator, when this object is destroyed, how the first rank of the job failed.
  void report(const Error& failure) override { report_ = problem_of(failure); }

 private:
  /// A socket, whose receive() blocks.
  class SocketLink final : public HostLink {
   public:
    SocketLink(const HostPart& part, double timeout_s);
    [[nodiscard]] const FrameClient& client() const { return client_; }
    bool send(const FrameWriter& frame) override { return client_.send(frame); }
    [[nodiscard]] bool closed() const override { return client_.closed(); }
    [[nodiscard]] double now() const override;

   private:
    bool receive_now(double deadline, std::optional<Frame>& frame) override;
    void resume_later(std::coroutine_handle<> waiting,
                      double deadline,
                      std::optional<Frame>& frame) override;
    FrameClient client_;
  };
  /// The control page of this host, in shared memory.
  class SharedPage final : public HostPage {
   public:
    SharedPage(ControlPage& control, std::function<void(int)> on_stop);
    [[nodiscard]] std::string line(int rank) override;
    void take_line(int rank, std::string_view bytes) override;
    [[nodiscard]] std::optional<BrokenWorld> broken() override;
    void break_world(const BrokenWorld& how) override;
    void stop(int signal) override;

   private:
    ControlPage& control_;
    std::function<void(int)> on_stop_;
  };

  std::shared_ptr<const HostPart> part_;
  SocketLink link_;
  HostProtocol protocol_;
  std::optional<SharedPage> page_;
  std::optional<HostProblem> report_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace tessera::hosts
