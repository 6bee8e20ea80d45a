// SPDX-License-Identifier: Apache-2.0
// A coordinator of a job on loopback, and the hosts that come to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "launch/fake_job.h"
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tessera/base/control_page.h"
#include "tessera/hosts/coordinator.h"
#include "tessera/hosts/coordinator_client.h"
#include "tessera/hosts/host_part.h"

namespace tessera::hosts {

/// The facts of a host: one setting with this value.
inline FactsOfHost setting(const std::string& value) {
  return [value](const std::function<void()>&) -> std::vector<Fact> {
    return {{Fact::Kind::Setting, "optimizer.params.lr", "", value}};
  };
}
inline const FactsOfHost kSame = setting("1");

/// Arrives as a host that has the same facts as others with kSame.
inline void arrive(FrameClient& client,
                   const HostPart& part,
                   const HostFacts& facts,
                   const FactsOfHost& told = kSame) {
  client.send(join_frame(part, facts));
  client.send(facts_frame(told({})));
}

/// A control page in private memory.
class Page {
 public:
  explicit Page(int ranks) : memory_(ControlPage::bytes(ranks) / sizeof(Block) + 1) {
    page_ = ControlPage::format(memory_.data(), ranks);
  }
  ControlPage& operator*() { return *page_; }
  ControlPage* operator->() { return page_; }

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  std::vector<Block> memory_;
  ControlPage* page_;
};

class HeadOfHosts : public testing::Test {
 protected:
  void start(int world, double join_timeout_s = 20.0, double silence_s = 8.0) {
    CoordinatorOptions options;
    options.address = "127.0.0.1";
    options.secret = secret_;
    options.world_size = world;
    options.join_timeout_s = join_timeout_s;
    options.silence_s = silence_s;
    options.notice = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      notices_.push_back(text);
    };
    options.table = [this](const std::vector<std::string>& lines) {
      const std::lock_guard lock(mutex_);
      table_ = lines;
    };
    coordinator_.emplace(options);
    coordinator_->start();
    world_ = world;
  }
  std::shared_ptr<HostPart> part(int host, int first, int ranks) const {
    auto out = std::make_shared<HostPart>();
    out->host = host;
    out->hosts = 2;
    out->first_rank = first;
    out->local_ranks = ranks;
    out->world_size = world_;
    out->name = "node-" + std::to_string(host);
    out->master = "127.0.0.1";
    out->port = coordinator_->port();
    out->secret = secret_;
    return out;
  }
  std::vector<std::string> notices() {
    const std::lock_guard lock(mutex_);
    return notices_;
  }
  std::vector<std::string> table() {
    const std::lock_guard lock(mutex_);
    return table_;
  }
  /// Connects without sending anything.
  int stranger() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(coordinator_->port()));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return fd;
  }

  Secret secret_ = random_secret();
  int world_ = 0;
  std::mutex mutex_;
  std::vector<std::string> notices_, table_;
  std::optional<Coordinator> coordinator_;  // its thread uses what stands above
};

}  // namespace tessera::hosts
