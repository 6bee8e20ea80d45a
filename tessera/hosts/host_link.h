// SPDX-License-Identifier: Apache-2.0
// The surroundings of a host's protocol: the connection to the coordinator, the control page of
// the host, and its network. Sockets and memory implement it, and a simulation.
#pragma once

#include <coroutine>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/hosts/frames.h"
#include "tessera/hosts/host_check.h"

namespace tessera::hosts {

/// The connection of a host to the coordinator of its job. Threads: one.
class HostLink {
 public:
  HostLink() = default;
  virtual ~HostLink() = default;
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  /// Sends a frame; returns false if the connection is broken.
  virtual bool send(const FrameWriter& frame) = 0;
  [[nodiscard]] virtual bool closed() const = 0;
  /// Monotonic time in seconds.
  [[nodiscard]] virtual double now() const = 0;

  /// The next frame, or nothing at the deadline or if the connection has ended.
  class Receive {
   public:
    Receive(HostLink& link, double deadline) : link_(link), deadline_(deadline) {}
    bool await_ready() { return link_.receive_now(deadline_, frame_); }
    void await_suspend(std::coroutine_handle<> waiting) {
      link_.resume_later(waiting, deadline_, frame_);
    }
    std::optional<Frame> await_resume() { return std::move(frame_); }

   private:
    HostLink& link_;
    double deadline_;
    std::optional<Frame> frame_;
  };
  /// To be awaited.
  Receive receive(double deadline) { return {*this, deadline}; }

 protected:
  /// Returns true if the outcome is known: `frame`, or none at the deadline. May block until then.
  virtual bool receive_now(double deadline, std::optional<Frame>& frame) = 0;
  /// Sets `frame` and resumes `waiting` once the outcome is known. A link that blocks in
  /// receive_now() is never asked.
  virtual void resume_later(std::coroutine_handle<> waiting,
                            double deadline,
                            std::optional<Frame>& frame) = 0;
};

/// How a world was broken.
struct BrokenWorld {
  int rank = 0;
  std::uint32_t kind = 0;
  std::string text;
};

/// The control page of a host as its protocol uses it.
class HostPage {
 public:
  HostPage() = default;
  virtual ~HostPage() = default;
  HostPage(const HostPage&) = delete;
  HostPage& operator=(const HostPage&) = delete;

  /// The line of a local rank, as line_bytes() returns it.
  [[nodiscard]] virtual std::string line(int rank) = 0;
  /// Takes the line of a rank of another host.
  virtual void take_line(int rank, std::string_view bytes) = 0;
  [[nodiscard]] virtual std::optional<BrokenWorld> broken() = 0;
  virtual void break_world(const BrokenWorld& how) = 0;
  virtual void stop(int signal) = 0;
};

/// The answer of a host that is asked to find out about its surroundings.
struct ProbeAnswer {
  std::uint8_t folder = 2;          ///< sees the marked run folder: 1, or not: 0; 2: not compared
  std::vector<std::string> closed;  ///< a text for each host that cannot be reached
};

}  // namespace tessera::hosts
