// SPDX-License-Identifier: Apache-2.0
// The connections of a coordinator as its protocol sees them: who is at the other end, and how
// bytes are sent.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_facts.h"

namespace tessera::hosts {

/// One connection, and the host at its other end once that has joined.
struct CoordinatorPeer {
  CoordinatorPeer() = default;
  virtual ~CoordinatorPeer() = default;
  CoordinatorPeer(const CoordinatorPeer&) = delete;
  CoordinatorPeer& operator=(const CoordinatorPeer&) = delete;

  std::string from;     ///< address of the other side
  double heard = 0.0;   ///< when the last bytes arrived
  bool closed = false;  ///< set by CoordinatorLinks::close()

  int host = -1, first = 0, ranks = 0;  ///< host: -1 until it has joined
  std::string name;
  HostFacts facts;
  bool has_facts = false;   ///< facts.facts are there
  double arrived_at = 0.0;  ///< by the clock of the coordinator, seconds since 1970
  std::string folder =
      "?";  ///< whether it sees the run folder: "shared", "own", "-"; "?": not asked
  bool has_left = false;
  [[nodiscard]] bool is_host() const { return host >= 0; }
};

/// Sockets (coordinator_connections.h), or a simulated network.
class CoordinatorLinks {
 public:
  CoordinatorLinks() = default;
  virtual ~CoordinatorLinks() = default;
  CoordinatorLinks(const CoordinatorLinks&) = delete;
  CoordinatorLinks& operator=(const CoordinatorLinks&) = delete;

  /// Queues bytes for a peer. Cost: the bytes.
  virtual void send(CoordinatorPeer& peer, std::string_view bytes) = 0;
  /// Ends a connection. The peer stays valid until the owner of the protocol forgets it.
  virtual void close(CoordinatorPeer& peer) = 0;
  [[nodiscard]] virtual const std::vector<std::unique_ptr<CoordinatorPeer>>& peers() const = 0;
  /// Processes of tessera that do not belong to this job, each once: hosts that were started in
  /// another way, perhaps.
  [[nodiscard]] virtual const std::vector<Mismatch>& strangers_of_tessera() const = 0;
};

}  // namespace tessera::hosts
