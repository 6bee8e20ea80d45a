// SPDX-License-Identifier: Apache-2.0
// Messages between ranks of different hosts over gloo, as libtorch contains it
// (c10d::ProcessGroupGloo).
#define USE_C10D_GLOO
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/registry.h"

namespace tessera::transports {
namespace {

using std::chrono::milliseconds;

/// A wait for a message ends with the world; it has no timeout of its own.
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
constexpr int kTag = 0;

milliseconds as_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

/// The values that the coordinator of the job keeps, through the interface that libtorch requires.
/// Threads: one.
class CoordinatorStore final : public c10d::Store {
 public:
  CoordinatorStore(hosts::StoreClient& values, double timeout_s)
      : c10d::Store(as_milliseconds(timeout_s)), values_(values) {}

  c10::intrusive_ptr<c10d::Store> clone() override { not_used("clone"); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    values_.set(key, std::string_view(reinterpret_cast<const char*>(value.data()), value.size()));
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
    return values_.get(key, static_cast<double>(timeout.count()) / 1e3);
  }

  hosts::StoreClient& values_;
};

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

/// Connects this rank with all others over TCP. The ranks exchange their addresses through the
/// coordinator of the job; gloo itself neither authenticates nor encrypts its connections, and
/// listens on one address of this host: that of the interface GLOO_SOCKET_IFNAME, or the one on the
/// way to the coordinator.
std::unique_ptr<comm::HostLink> connect_gloo(int rank,
                                             const hosts::HostPart& part,
                                             hosts::StoreClient& values,
                                             double timeout_s) {
  auto store = c10::make_intrusive<CoordinatorStore>(values, timeout_s);
  auto options = c10d::ProcessGroupGloo::Options::create(as_milliseconds(timeout_s));
  options->threads = 1;
  try {
    const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
    options->devices.push_back(
        interface != nullptr && *interface != '\0'
            ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
            : c10d::ProcessGroupGloo::createDeviceForHostname(values.own_address()));
    return std::make_unique<GlooLink>(c10::make_intrusive<c10d::ProcessGroupGloo>(
        std::move(store), rank, part.world_size, std::move(options)));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw Error(Error::Kind::Comm,
                fmt::format("gloo cannot connect the ranks: {}", text.substr(0, text.find('\n'))),
                "GLOO_SOCKET_IFNAME=eth1 chooses an interface that the other hosts can reach");
  }
}

TESSERA_LINK("gloo", {.rank_of_choice = 1, .connect = connect_gloo});

}  // namespace
}  // namespace tessera::transports
