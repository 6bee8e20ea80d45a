// SPDX-License-Identifier: Apache-2.0
#include "tessera/transports/staged.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/registry.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"

namespace tessera::transports {
namespace {

using comm::CallSite;
using comm::Group;
using comm::Op;
using comm::Span;
using comm::WorkPtr;
using comm::Write;

class DeviceRegion final : public comm::Region {
 public:
  DeviceRegion(std::size_t bytes, Device device)
      : bytes_(bytes),
        device_(device),
        memory_(at::zeros({static_cast<std::int64_t>(bytes + kAlign)},
                          at::device(to_torch(device)).dtype(at::kByte))) {}
  [[nodiscard]] void* data() const override {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data_ptr());
    return reinterpret_cast<void*>((at + kAlign - 1) / kAlign * kAlign);
  }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  [[nodiscard]] Device device() const override { return device_; }

 private:
  static constexpr std::size_t kAlign = 4096;  // Transport::allocate() promises it
  std::size_t bytes_;
  Device device_;
  at::Tensor memory_;
};

/// Memory of the host for the elements of a span.
at::Tensor room_for(const Span& span) {
  return landing_room(
      static_cast<std::int64_t>(span.count), to_torch(span.dtype), to_torch(span.device));
}

at::Tensor host_copy(const Span& span) {
  at::Tensor out = room_for(span);
  if (span.count > 0) out.copy_(tensor_of(span));
  return out;
}

bool overlap(const Span& a, const Span& b) {
  const std::less<> before;
  const auto* const from = static_cast<const std::byte*>(a.data);
  const auto* const to = static_cast<const std::byte*>(b.data);
  return a.count > 0 && b.count > 0 && before(from, to + b.bytes()) && before(to, from + a.bytes());
}

/// An operation of the host's transport, and the copies to and from it.
struct Staged {
  WorkPtr work;
  at::Tensor in, out;  ///< on the host; `out` is undefined if nothing is copied back
  Span to;             ///< on the device
  void land() {
    if (!work) return;
    work->wait();
    work.reset();
    if (out.defined() && to.count > 0) tensor_of(to).copy_(out, /*non_blocking=*/true);
    in = out = at::Tensor();
  }
};

/// The input is on the host since the operation was posted, and may be overwritten at once.
class StagedWork final : public comm::Work {
 public:
  explicit StagedWork(std::shared_ptr<Staged> staged) : staged_(std::move(staged)) {}
  bool done() override {
    if (staged_->work && !staged_->work->done()) return false;
    staged_->land();
    return true;
  }
  void wait() override { staged_->land(); }
  void wait_reusable() override {}

 private:
  std::shared_ptr<Staged> staged_;
};

class StagedTransport final : public comm::Transport {
 public:
  StagedTransport(std::shared_ptr<comm::Transport> host, Device device)
      : host_(std::move(host)), device_(device) {}

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  [[nodiscard]] Device device() const override { return device_; }
  comm::RegionPtr allocate(std::size_t bytes, memory::Tag tag) override {
    try {
      return std::make_shared<DeviceRegion>(bytes, device_);
    } catch (const c10::OutOfMemoryError& error) {
      throw Error(Error::Kind::Memory,
                  fmt::format("cannot allocate {} of {} for {}: {}",
                              text::bytes(bytes),
                              to_text(device_),
                              memory::name(tag),
                              text::split(error.what_without_backtrace(), '\n').front()),
                  "use a smaller model or micro-batch, or shard it: zero_optimization.stage 3");
    }
  }

  WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) override {
    prepare({in, out}, site);
    const at::Tensor from = host_copy(in),
                     to = write == Write::Accumulate ? host_copy(out) : room_for(out);
    return keep(
        host_->reduce_scatter(group, span_of(from), span_of(to), op, write, std::move(site)),
        from,
        to,
        out);
  }
  WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) override {
    prepare({in, out}, site);
    const at::Tensor from = host_copy(in), to = room_for(out);
    return keep(
        host_->all_gather(group, span_of(from), span_of(to), std::move(site)), from, to, out);
  }
  WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) override {
    prepare({data}, site);
    const at::Tensor all = host_copy(data);
    return keep(host_->all_reduce(group, span_of(all), op, std::move(site)), {}, all, data);
  }
  WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) override {
    prepare({data}, site);
    const bool root = group.index == root_index;
    const at::Tensor all = root ? host_copy(data) : room_for(data);
    WorkPtr work = host_->broadcast(group, span_of(all), root_index, std::move(site));
    if (root) return keep(std::move(work), all, {}, {});
    return keep(std::move(work), {}, all, data);
  }
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override {
    prepare({in, out}, site);
    const at::Tensor from = host_copy(in), to = room_for(out);
    return keep(
        host_->all_to_all(group, span_of(from), span_of(to), std::move(site)), from, to, out);
  }
  WorkPtr all_to_all_v(const Group& group,
                       Span in,
                       Span out,
                       std::span<const std::int64_t> counts,
                       CallSite site) override {
    prepare({in, out}, site);
    const at::Tensor from = host_copy(in), to = room_for(out);
    return keep(host_->all_to_all_v(group, span_of(from), span_of(to), counts, std::move(site)),
                from,
                to,
                out);
  }
  WorkPtr barrier(const Group& group, CallSite site) override {
    return host_->barrier(group, std::move(site));
  }
  WorkPtr send(int peer, int channel, Span data, CallSite site) override {
    prepare({data}, site);
    const at::Tensor from = host_copy(data);
    return keep(host_->send(peer, channel, span_of(from), std::move(site)), from, {}, {});
  }
  WorkPtr recv(int peer, int channel, Span data, CallSite site) override {
    prepare({data}, site);
    const at::Tensor to = room_for(data);
    return keep(host_->recv(peer, channel, span_of(to), std::move(site)), {}, to, data);
  }

  void progress() noexcept override { host_->progress(); }
  void abort(const Error& error) noexcept override { host_->abort(error); }
  double take_comm_seconds() noexcept override { return host_->take_comm_seconds(); }
  [[nodiscard]] comm::Traffic traffic() const noexcept override { return host_->traffic(); }
  [[nodiscard]] comm::Traffic traffic(const Group& group) const override {
    return host_->traffic(group);
  }
  [[nodiscard]] comm::Traffic messages() const noexcept override { return host_->messages(); }
  void set_stall_limit(double seconds) noexcept override { host_->set_stall_limit(seconds); }

 private:
  /// Checks the spans, and completes the operations whose outputs they overlap.
  void prepare(std::initializer_list<Span> spans, const CallSite& site) {
    std::erase_if(open_, [](const auto& staged) { return staged.expired(); });
    for (const Span& span : spans) {
      TESSERA_REQUIRE(span.device == device_,
                      Unsupported,
                      fmt::format("{}: a collective of {} with memory of {}",
                                  site.what,
                                  to_text(device_),
                                  to_text(span.device)),
                      "use World::host_transport() for memory of the host");
      for (const auto& open : open_) {
        const std::shared_ptr<Staged> staged = open.lock();
        if (staged->work && overlap(staged->to, span)) staged->land();
      }
    }
  }
  WorkPtr keep(WorkPtr work, at::Tensor in, at::Tensor out, Span to) {
    auto staged =
        std::make_shared<Staged>(Staged{std::move(work), std::move(in), std::move(out), to});
    open_.push_back(staged);
    return std::make_unique<StagedWork>(std::move(staged));
  }

  std::shared_ptr<comm::Transport> host_;
  Device device_;
  std::vector<std::weak_ptr<Staged>> open_;
};

std::string why_not_staged(const comm::WorldNeeds& /*needs*/) {
  return "";
}

comm::MadeTransport make_staged(const comm::WorldNeeds& needs,
                                ControlPage* /*control*/,
                                const std::shared_ptr<comm::Transport>& host) {
  return {make_staged_transport(host, needs.device), {}};
}

// Transports that move memory between devices directly are preferred.
constexpr int kLast = 100;
TESSERA_TRANSPORT("staged",
                  {.moves = DeviceKind::Cuda,
                   .rank_of_choice = kLast,
                   .why_not = why_not_staged,
                   .make = make_staged});
TESSERA_TRANSPORT("staged-plugin",
                  {.moves = DeviceKind::Plugin,
                   .rank_of_choice = kLast,
                   .why_not = why_not_staged,
                   .make = make_staged});

}  // namespace

std::unique_ptr<comm::Transport> make_staged_transport(std::shared_ptr<comm::Transport> host,
                                                       Device device) {
  return std::make_unique<StagedTransport>(std::move(host), device);
}

}  // namespace tessera::transports
