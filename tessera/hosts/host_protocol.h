// SPDX-License-Identifier: Apache-2.0
// The host's part of the protocol between a job's hosts and their coordinator, without sockets or
// threads: how the host arrives, and how it shares the lines of its ranks afterwards.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_facts.h"
#include "tessera/hosts/host_link.h"
#include "tessera/hosts/host_part.h"
#include "tessera/hosts/routine.h"

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

/// One host's side of the protocol. Threads: one.
class HostProtocol {
 public:
  using Probe =
      std::function<ProbeAnswer(const std::string& mark, const std::vector<HostAddress>& hosts)>;

  /// `part` and `link` must outlive this object.
  HostProtocol(const HostPart& part, HostLink& link);

  /// Tells the facts of this host, and ends when all hosts have arrived and agree. `probe` is
  /// called when the coordinator asks what this host reaches. Throws the Refusal of the
  /// coordinator, and Error{Comm} if the connection ends.
  Routine join(const HostFacts& facts, const FactsOfHost& facts_of_host, Probe probe);
  /// Keeps `page` up to date until `ending` is true or the connection ends, which breaks the world.
  /// `page` and `ending` must outlive the routine.
  Routine follow(HostPage& page, const std::atomic<bool>& ending);
  /// Tells the coordinator that the ranks have ended, and before that, how the first one failed.
  void leave(const std::optional<HostProblem>& report);

 private:
  void show_life();
  void obey(const Frame& frame, HostPage& page);
  void send_changes(double now, HostPage& page);
  void break_off(const std::string& how, HostPage& page) const;

  const HostPart& part_;
  HostLink& link_;
  std::vector<std::string>
      sent_;  ///< the last line of each local rank that the coordinator received
  double interval_s_, looked_ = 0.0, spoke_ = 0.0, heard_ = 0.0;
  bool told_abort_ = false;
};

}  // namespace tessera::hosts
