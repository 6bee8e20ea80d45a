// SPDX-License-Identifier: Apache-2.0
#include "devices/staged_transport.h"

#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/tensor/dtype.h"

namespace tessera::test {
namespace {

using comm::CallSite;
using comm::Group;
using comm::Op;
using comm::Span;
using comm::WorkPtr;
using comm::Write;

class DeviceRegion final : public comm::Region {
 public:
  DeviceRegion(std::size_t bytes, at::Device device)
      : memory_(
            at::zeros({static_cast<std::int64_t>(bytes)}, at::device(device).dtype(at::kByte))) {}
  [[nodiscard]] void* data() const override { return memory_.data_ptr(); }
  [[nodiscard]] std::size_t bytes() const override {
    return static_cast<std::size_t>(memory_.numel());
  }
  [[nodiscard]] Device device() const override { return from_torch(memory_.device()); }

 private:
  at::Tensor memory_;
};

/// The memory of a span as a tensor on its device.
at::Tensor tensor_of(const Span& span) {
  const c10::Device device = to_torch(span.device);
  return at::for_blob(span.data, {static_cast<std::int64_t>(span.count)})
      .options(at::device(device).dtype(to_torch(span.dtype)))
      .target_device(device)
      .make_tensor();
}

/// A copy of a span on the host.
class HostCopy {
 public:
  explicit HostCopy(const Span& of) : of_(of), values_(tensor_of(of).to(at::kCPU).contiguous()) {}
  [[nodiscard]] Span span() const { return {values_.data_ptr(), of_.count, of_.dtype, {}}; }
  void write_back() const { tensor_of(of_).copy_(values_); }

 private:
  Span of_;
  at::Tensor values_;
};

class StagedTransport final : public comm::Transport {
 public:
  StagedTransport(comm::Transport& host, at::Device device) : host_(host), device_(device) {}

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  [[nodiscard]] Device device() const override { return from_torch(device_); }
  comm::RegionPtr allocate(std::size_t bytes, memory::Tag tag) override {
    if (device_.is_cpu()) return host_.allocate(bytes, tag);
    return std::make_shared<DeviceRegion>(bytes, device_);
  }

  WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) override {
    return staged(in, out, [&](const Span& from, const Span& to) {
      return host_.reduce_scatter(group, from, to, op, write, std::move(site));
    });
  }
  WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) override {
    return staged(in, out, [&](const Span& from, const Span& to) {
      return host_.all_gather(group, from, to, std::move(site));
    });
  }
  WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) override {
    return staged({}, data, [&](const Span&, const Span& all) {
      return host_.all_reduce(group, all, op, std::move(site));
    });
  }
  WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) override {
    return staged({}, data, [&](const Span&, const Span& all) {
      return host_.broadcast(group, all, root_index, std::move(site));
    });
  }
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override {
    return staged(in, out, [&](const Span& from, const Span& to) {
      return host_.all_to_all(group, from, to, std::move(site));
    });
  }
  WorkPtr all_to_all_v(const Group& group,
                       Span in,
                       Span out,
                       std::span<const std::int64_t> counts,
                       CallSite site) override {
    return staged(in, out, [&](const Span& from, const Span& to) {
      return host_.all_to_all_v(group, from, to, counts, std::move(site));
    });
  }
  WorkPtr barrier(const Group& group, CallSite site) override {
    return host_.barrier(group, std::move(site));
  }
  WorkPtr send(int /*peer*/, int /*channel*/, Span /*data*/, CallSite /*site*/) override {
    throw std::logic_error("the staged transport sends no messages");
  }
  WorkPtr recv(int /*peer*/, int /*channel*/, Span /*data*/, CallSite /*site*/) override {
    throw std::logic_error("the staged transport receives no messages");
  }

  void progress() noexcept override { host_.progress(); }
  void abort(const Error& error) noexcept override { host_.abort(error); }
  double take_comm_seconds() noexcept override { return host_.take_comm_seconds(); }
  [[nodiscard]] comm::Traffic traffic() const noexcept override { return host_.traffic(); }
  [[nodiscard]] comm::Traffic traffic(const Group& group) const override {
    return host_.traffic(group);
  }
  [[nodiscard]] comm::Traffic messages() const noexcept override { return host_.messages(); }
  void set_stall_limit(double seconds) noexcept override { host_.set_stall_limit(seconds); }

 private:
  struct Completed final : comm::Work {
    bool done() override { return true; }
    void wait() override {}
    void wait_reusable() override {}
  };

  /// Runs a collective on copies of the spans that it reads and writes, if they are on the device.
  template <class Fn>
  WorkPtr staged(const Span& in, const Span& out, Fn post) {
    if (device_.is_cpu()) return post(in, out);
    if (to_torch(out.device) != device_)
      throw std::logic_error("a collective of the device was given memory of the host");
    const HostCopy from(in.data == nullptr ? out : in), to(out);
    const WorkPtr work = post(from.span(), to.span());
    work->wait();
    work->wait_reusable();
    to.write_back();
    return std::make_unique<Completed>();
  }
  comm::Transport& host_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<comm::World> world_on(at::Device device, comm::World& host) {
  std::shared_ptr<ControlPage> control(&host.control(), [](ControlPage*) {});
  return std::make_unique<comm::World>(
      host.rank(),
      host.mesh(),
      std::make_unique<StagedTransport>(host.transport(), at::kCPU),
      std::make_unique<StagedTransport>(host.transport(), device),
      std::move(control));
}

}  // namespace tessera::test
