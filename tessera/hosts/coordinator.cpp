// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/hosts/coordinator_connections.h"
#include "tessera/launch/shared_files.h"

namespace tessera::hosts {

/// The protocol on sockets, and what other threads ask of it.
class Coordinator::Server {
 public:
  Server(CoordinatorOptions options, launch::Fd listener)
      : connections_(
            std::move(listener),
            options.secret,
            options.world_size,
            [this](CoordinatorPeer& peer, const Frame& frame) { protocol_.handle(peer, frame); },
            [notice = options.notice](const std::string& text) {
              if (notice) notice(text);
            }),
        protocol_(std::move(options), connections_, clocks_of_this_host()) {}

  void run() {
    protocol_.begin();
    double next = 0.0;
    while (!ending_) {
      connections_.wait(next);
      obey();
      if (now_s() >= next) {
        connections_.look(now_s());
        next = protocol_.look();
      }
      connections_.flush();
      connections_.forget([this](CoordinatorPeer& peer) { protocol_.gone(peer); });
    }
  }

  void end() {
    ending_ = true;
    protocol_.end();
    connections_.wake();
  }
  void stop_hosts(int signal) {
    order([this, signal] { protocol_.stop_hosts(signal); });
  }
  void settle() {
    // The second order follows what had arrived when the first one was given.
    for (int pass = 0; pass < 2; ++pass) {
      auto done = std::make_shared<std::promise<void>>();
      std::future<void> handled = done->get_future();
      order([done] { done->set_value(); });
      if (handled.wait_for(std::chrono::milliseconds(500)) != std::future_status::ready) return;
    }
  }
  CoordinatorProtocol& protocol() { return protocol_; }

 private:
  void order(std::function<void()> what) {
    {
      const std::lock_guard lock(mutex_);
      orders_.push_back(std::move(what));
    }
    connections_.wake();
  }
  void obey() {
    std::vector<std::function<void()>> orders;
    {
      const std::lock_guard lock(mutex_);
      orders.swap(orders_);
    }
    for (const auto& what : orders)
      what();
  }

  CoordinatorConnections connections_;
  CoordinatorProtocol protocol_;
  std::atomic<bool> ending_{false};
  std::mutex mutex_;  // for orders_
  std::vector<std::function<void()>> orders_;
};

Coordinator::Coordinator(CoordinatorOptions options) {
  std::string why;
  launch::Fd listener;
  for (int at = 0; at < std::max(1, options.ports) && listener.get() < 0; ++at)
    listener = listen_on(options.address, options.port == 0 ? 0 : options.port + at, why);
  TESSERA_REQUIRE(listener.get() >= 0,
                  Environment,
                  fmt::format("cannot listen on {}, ports {} to {}: {}",
                              options.address,
                              options.port,
                              options.port + std::max(1, options.ports) - 1,
                              why),
                  "--master_addr must be an address of the host of rank 0; choose another "
                  "--master_port");
  port_ = port_of(listener.get());
  server_ = std::make_unique<Server>(std::move(options), std::move(listener));
}

Coordinator::~Coordinator() {
  server_->end();
  if (thread_.joinable()) thread_.join();
}

void Coordinator::start() {
  thread_ = quiet_thread([this] { server_->run(); });
}

void Coordinator::stop_hosts(int signal) {
  server_->stop_hosts(signal);
}
bool Coordinator::ready() const {
  return server_->protocol().ready();
}
void Coordinator::wait_until_left() {
  server_->protocol().wait_until_left();
}
std::vector<int> Coordinator::lost_hosts() const {
  return server_->protocol().lost_hosts();
}
std::string Coordinator::abort_text() const {
  return server_->protocol().abort_text();
}
std::map<int, int> Coordinator::exit_codes() const {
  return server_->protocol().exit_codes();
}
CoordinatorNews Coordinator::news() const {
  return server_->protocol().news();
}
void Coordinator::settle() {
  server_->settle();
}

}  // namespace tessera::hosts
