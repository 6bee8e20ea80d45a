// SPDX-License-Identifier: Apache-2.0
#define USE_C10D_GLOO
#include "tessera/engine/gloo_link.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/launch/master.h"
#include "tessera/launch/wire.h"

namespace tessera::engine {
namespace {

using std::chrono::milliseconds;

/// A wait for a message ends with the world; it has no timeout of its own.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr int kTag = 0;

milliseconds as_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

/// The values that the head of the job keeps, through the interface that libtorch requires.
/// Threads: one.
class HeadStore final : public c10d::Store {
 public:
  HeadStore(const launch::HostPart& part, double timeout_s)
      : c10d::Store(as_milliseconds(timeout_s)),
        client_(part.master,
                part.port,
                part.head_in_rank_0 ? launch::kMasterPorts : 1,
                part.secret,
                now_s() + timeout_s) {}

  [[nodiscard]] std::string own_address() const { return client_.own_address(); }

  c10::intrusive_ptr<c10d::Store> clone() override { not_used("clone"); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
    TESSERA_REQUIRE(client_.send(launch::FrameWriter(launch::FrameType::Set).text(key).text(bytes)),
                    Comm,
                    "the connection to the host of rank 0 was lost while the ranks met",
                    "see its message");
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string& value = value_of(key, timeout_);
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string&, std::int64_t) override { not_used("add"); }
  bool deleteKey(const std::string&) override { not_used("deleteKey"); }
  bool check(const std::vector<std::string>&) override { not_used("check"); }
  std::int64_t getNumKeys() override { not_used("getNumKeys"); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys)
      value_of(key, std::min(timeout, timeout_));
  }

 private:
  [[noreturn]] static void not_used(const char* call) {
    throw Error(Error::Kind::Bug, fmt::format("gloo calls {}() of its store", call));
  }

  const std::string& value_of(const std::string& key, milliseconds timeout) {
    const auto known = values_.find(key);
    if (known != values_.end()) return known->second;
    client_.send(launch::FrameWriter(launch::FrameType::Get).text(key));
    const double deadline = now_s() + static_cast<double>(timeout.count()) / 1e3;
    while (const std::optional<launch::Frame> frame = client_.receive(deadline)) {
      if (frame->type != launch::FrameType::Value) continue;
      launch::FrameReader body(*frame);
      const std::string name = body.text();
      values_[name] = body.text();
      if (name == key) return values_[name];
    }
    throw Error(Error::Kind::Comm,
                "another rank did not connect in time, or the host of rank 0 went away",
                "see the messages of the other hosts");
  }

  launch::WireClient client_;
  std::map<std::string, std::string> values_;
};

/// Every host reports how many ranks it has; a host is named by its first rank.
comm::HostLayout exchange_layout(HeadStore& store, int rank, const launch::HostPart& part) {
  const auto key = [](int first) { return fmt::format("ranks of the host from {}", first); };
  if (rank == part.first_rank) {
    const std::string count = std::to_string(part.local_ranks);
    store.set(key(rank), std::vector<std::uint8_t>(count.begin(), count.end()));
  }
  comm::HostLayout layout{{0}};
  while (layout.first.back() < part.world_size) {
    const int first = layout.first.back();
    const std::vector<std::uint8_t> text = store.get(key(first));
    layout.first.push_back(first + std::atoi(std::string(text.begin(), text.end()).c_str()));
    TESSERA_REQUIRE(layout.first.back() > first && layout.first.back() <= part.world_size,
                    Comm,
                    fmt::format("the host of rank {} has no valid number of ranks", first),
                    "");
  }
  return layout;
}

at::Tensor tensor_of(const std::byte* data, std::size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

class GlooLink final : public comm::HostLink {
 public:
  explicit GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  [[nodiscard]] std::string_view name() const override { return "gloo"; }

  void send(int peer, std::span<const Bytes> messages) override {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    call([&] {
      for (const Bytes& message : messages) {
        std::vector<at::Tensor> tensors = {tensor_of(message.data(), message.size())};
        works.push_back(group_->send(tensors, peer, kTag));
      }
    });
    for (const auto& work : works)
      wait(work);
  }

  void receive(int peer, std::span<std::byte> message) override {
    c10::intrusive_ptr<c10d::Work> work;
    call([&] {
      std::vector<at::Tensor> tensors = {tensor_of(message.data(), message.size())};
      work = group_->recv(tensors, peer, kTag);
    });
    wait(work);
  }

  void close() noexcept override {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& work : waiting_)
      work->abort();
  }

 private:
  /// Converts the exceptions of gloo, whose texts begin with a place in its source.
  template <class Fn>
  static void call(Fn fn) {
    try {
      fn();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      std::string_view text = error.what();
      text = text.substr(0, text.find('\n'));
      if (const std::size_t place = text.find("] "); place != std::string_view::npos)
        text.remove_prefix(place + 2);
      throw Error(Error::Kind::Comm, fmt::format("gloo: {}", text), "");
    }
  }

  void wait(const c10::intrusive_ptr<c10d::Work>& work) {
    {
      const std::lock_guard lock(mutex_);
      require_open();
      waiting_.push_back(work);
    }
    bool complete = false;
    std::exception_ptr failure;
    try {
      call([&] { complete = work->wait(kForever); });
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    std::erase(waiting_, work);
    if (failure) std::rethrow_exception(failure);
    if (!complete) require_open();
    TESSERA_REQUIRE(complete, Comm, "gloo: a message was interrupted", "");
  }

  void require_open() const {
    TESSERA_REQUIRE(!closed_, Comm, "the connections of this rank are closed", "");
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<c10d::Work>> waiting_;
  bool closed_ = false;
};

}  // namespace

GlooConnection connect_gloo(int rank, const launch::HostPart& part, double timeout_s) {
  auto store = c10::make_intrusive<HeadStore>(part, timeout_s);
  auto options = c10d::ProcessGroupGloo::Options::create(as_milliseconds(timeout_s));
  options->threads = 1;
  try {
    const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
    options->devices.push_back(
        interface != nullptr && *interface != '\0'
            ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
            : c10d::ProcessGroupGloo::createDeviceForHostname(store->own_address()));
    comm::HostLayout layout = exchange_layout(*store, rank, part);
    return {std::make_unique<GlooLink>(c10::make_intrusive<c10d::ProcessGroupGloo>(
                store, rank, part.world_size, std::move(options))),
            std::move(layout)};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw Error(Error::Kind::Comm,
                fmt::format("gloo cannot connect the ranks: {}", text.substr(0, text.find('\n'))),
                "GLOO_SOCKET_IFNAME=eth1 chooses an interface that the other hosts can reach");
  }
}

}  // namespace tessera::engine
