// SPDX-License-Identifier: Apache-2.0
// The connections of a coordinator to the hosts of a job: who may connect, and the bytes in both
// directions. The cost of a frame does not depend on the number of hosts.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/epoll.h>

#include "tessera/hosts/coordinator_links.h"
#include "tessera/hosts/frames.h"
#include "tessera/hosts/secret.h"
#include "tessera/launch/shared_files.h"

namespace tessera::hosts {

/// A connection on a socket.
struct SocketPeer;

/// Accepts connections on a listening socket and closes those that do not prove within some seconds
/// that they belong to the job. Threads: one, except for wake().
class CoordinatorConnections : public CoordinatorLinks {
 public:
  using OnFrame = std::function<void(CoordinatorPeer& peer, const Frame& frame)>;
  using Tell = std::function<void(const std::string& text)>;
  /// `world`: number of ranks of the job; many more connections without a proof are closed at once.
  CoordinatorConnections(
      launch::Fd listener, const Secret& secret, int world, OnFrame on_frame, Tell tell);
  ~CoordinatorConnections() override;

  /// Ends a wait(). From any thread.
  void wake() const;
  /// Waits for events until `deadline`, accepts and receives. Calls OnFrame for every frame; an
  /// Error that it throws closes that connection and is logged.
  void wait(double deadline);
  /// Queues bytes for a peer; flush() sends them.
  void send(CoordinatorPeer& peer, std::string_view bytes) override;
  void close(CoordinatorPeer& peer) override;
  /// Sends what was queued, as far as the other sides receive it. A peer that receives nothing of
  /// many bytes is closed.
  void flush();
  /// Closes connections that have not proved within some seconds that they belong to the job, and
  /// accepts new ones again after a lack of descriptors. Call it a few times in a second.
  void look(double now);
  /// Calls `closed` for every closed connection, then forgets them.
  void forget(const std::function<void(CoordinatorPeer& peer)>& closed);
  [[nodiscard]] const std::vector<std::unique_ptr<CoordinatorPeer>>& peers() const override {
    return peers_;
  }
  [[nodiscard]] const std::vector<Mismatch>& strangers_of_tessera() const override {
    return rejected_;
  }

 private:
  void accept_all();
  void receive(SocketPeer& peer);
  void take(SocketPeer& peer, std::string_view bytes);
  void flush(SocketPeer& peer);
  void check_proof(SocketPeer& peer);
  [[noreturn]] void reject(const SocketPeer& peer, const Introduction& about);
  void watch(int fd, void* what, bool sends, int operation) const;

  launch::Fd listener_, epoll_, wake_read_, wake_write_;
  Secret secret_;
  int world_;
  OnFrame on_frame_;
  Tell tell_;
  std::vector<std::unique_ptr<CoordinatorPeer>> peers_;
  std::vector<SocketPeer*> queued_;  ///< have bytes to send
  std::size_t strangers_ = 0;        ///< connections without a proof
  bool any_closed_ = false;          ///< forget() has something to do
  bool accepts_ = true, told_of_limit_ = false;
  std::vector<Mismatch> rejected_;
  std::set<std::string> told_;  ///< notices, each of which is told once
};

/// Returns a socket that listens, or none and the reason. `port` 0: any free one.
launch::Fd listen_on(const std::string& address, int port, std::string& why);
/// Returns the port on which a socket listens.
int port_of(int fd);

}  // namespace tessera::hosts
