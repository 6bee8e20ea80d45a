// SPDX-License-Identifier: Apache-2.0
#include "tessera/transports/nccl.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/comm/registry.h"
#include "tessera/comm/transports/local.h"
#include "tessera/ops/reduce_parts.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"
#include "tessera/transports/staged.h"

namespace tessera::transports {
namespace {

using comm::CallSite;
using comm::Group;
using comm::Op;
using comm::Span;
using comm::Traffic;
using comm::WorkPtr;
using comm::Write;

/// Everything travels as bytes (ncclUint8).
constexpr int kBytes = 1;

/// Complete when an event on the stream of its group is.
class EventWork final : public comm::Work {
 public:
  EventWork(const c10::Stream& stream, std::vector<at::Tensor> kept)
      : guard_(stream.device_type()),
        device_(stream.device()),
        event_(stream.device_type()),
        kept_(std::move(kept)) {
    event_.record(stream);
  }
  bool done() override { return event_.query(); }
  void wait() override { event_.block(guard_.getStream(device_)); }
  void wait_reusable() override { wait(); }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device device_;
  c10::Event event_;
  std::vector<at::Tensor> kept_;  ///< buffers that belong to the stream of the group
};

/// The parts of an exchange: the first byte of each, and one more entry.
std::vector<std::size_t> equal_parts(std::size_t bytes, int parts) {
  std::vector<std::size_t> out;
  for (int i = 0; i <= parts; ++i)
    out.push_back(bytes / static_cast<std::size_t>(parts) * static_cast<std::size_t>(i));
  return out;
}

class NcclTransport final : public comm::Transport {
 public:
  NcclTransport(const NcclApi& api, std::shared_ptr<comm::Transport> host, Device device)
      : api_(api),
        host_(std::move(host)),
        staged_(make_staged_transport(host_, device)),
        device_(device),
        guard_(to_torch(device).type()) {}
  ~NcclTransport() override {
    for (auto& [id, lane] : lanes_)
      api_.comm_abort(lane.comm);
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] Device device() const override { return device_; }
  comm::RegionPtr allocate(std::size_t bytes, memory::Tag tag) override {
    return staged_->allocate(bytes, tag);
  }

  WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) override {
    check_reduce_scatter(group, plain(in, site), plain(out, site), op, site);
    count(group, in);
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>& kept) {
      const at::Tensor source = tensor_of(in);
      const at::Tensor parts =
          at::empty({group.size(), static_cast<std::int64_t>(out.count)}, source.options());
      kept.push_back(parts);
      const std::vector<std::size_t> places = equal_parts(in.bytes(), group.size());
      exchange(lane, in.data, places, parts.data_ptr(), places, site);
      ops::reduce_parts(parts, op, write == Write::Accumulate, tensor_of(out));
    });
  }
  WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) override {
    check_all_gather(group, plain(in, site), plain(out, site), site);
    count(group, out);
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>&) {
      check(api_.all_gather(in.data, out.data, in.bytes(), kBytes, lane.comm, native(lane)), site);
    });
  }
  WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) override {
    check_all_reduce(plain(data, site), op, site);
    count(group, data, 2);
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>& kept) {
      const at::Tensor own = tensor_of(data);
      const at::Tensor all = at::empty({group.size(), own.numel()}, own.options());
      kept.push_back(all);
      check(
          api_.all_gather(data.data, all.data_ptr(), data.bytes(), kBytes, lane.comm, native(lane)),
          site);
      ops::reduce_parts(all, op, /*accumulate=*/false, own);
    });
  }
  WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) override {
    check_broadcast(group, plain(data, site), root_index, site);
    count(group, data);
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>&) {
      check(api_.broadcast(
                data.data, data.data, data.bytes(), kBytes, root_index, lane.comm, native(lane)),
            site);
    });
  }
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override {
    check_all_to_all(group, plain(in, site), plain(out, site), site);
    count(group, in);
    const std::vector<std::size_t> places = equal_parts(in.bytes(), group.size());
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>&) {
      exchange(lane, in.data, places, out.data, places, site);
    });
  }
  WorkPtr all_to_all_v(const Group& group,
                       Span in,
                       Span out,
                       std::span<const std::int64_t> counts,
                       CallSite site) override {
    check_all_to_all_v(group, plain(in, site), plain(out, site), counts, site);
    count(group, in);
    const auto bytes = [&](std::vector<std::size_t> places) {
      for (std::size_t& place : places)
        place *= size_of(in.dtype);
      return places;
    };
    const std::vector<std::size_t> sent =
                                       bytes(comm::sent_parts(counts, group.size(), group.index)),
                                   received = bytes(
                                       comm::received_parts(counts, group.size(), group.index));
    return on_lane(group, site, [&](Lane& lane, std::vector<at::Tensor>&) {
      exchange(lane, in.data, sent, out.data, received, site);
    });
  }
  WorkPtr barrier(const Group& group, CallSite site) override {
    return host_->barrier(group, std::move(site));
  }
  WorkPtr send(int peer, int channel, Span data, CallSite site) override {
    return staged_->send(peer, channel, data, std::move(site));
  }
  WorkPtr recv(int peer, int channel, Span data, CallSite site) override {
    return staged_->recv(peer, channel, data, std::move(site));
  }

  void progress() noexcept override {
    host_->progress();
    for (auto& [id, lane] : lanes_) {
      int result = 0;
      if (api_.comm_get_async_error(lane.comm, &result) != 0 || !failed(result)) continue;
      host_->abort(Error(Error::Kind::Comm, words(result), "see the messages of NCCL_DEBUG=WARN"));
    }
  }
  void abort(const Error& error) noexcept override { host_->abort(error); }
  double take_comm_seconds() noexcept override { return host_->take_comm_seconds(); }
  [[nodiscard]] Traffic traffic() const noexcept override {
    Traffic out = host_->traffic();
    add(out, traffic_);
    return out;
  }
  [[nodiscard]] Traffic traffic(const Group& group) const override {
    Traffic out = host_->traffic(group);
    const auto found = traffic_of_.find(group.id);
    if (found != traffic_of_.end()) add(out, found->second);
    return out;
  }
  [[nodiscard]] Traffic messages() const noexcept override { return host_->messages(); }
  void set_stall_limit(double seconds) noexcept override { host_->set_stall_limit(seconds); }

 private:
  /// The communicator of a group, and the stream of its collectives.
  struct Lane {
    void* comm = nullptr;
    std::optional<c10::Stream> stream;
  };

  static void add(Traffic& to, const Traffic& more) {
    to.elements += more.elements;
    to.bytes += more.bytes;
    to.calls += more.calls;
  }
  void count(const Group& group, const Span& span, std::int64_t times = 1) {
    if (group.size() == 1) return;
    const Traffic more = {times * static_cast<std::int64_t>(span.count),
                          times * static_cast<std::int64_t>(span.bytes()),
                          1};
    add(traffic_, more);
    add(traffic_of_[group.id], more);
  }

  /// The span as the checks of arguments know it, which are those of host memory.
  [[nodiscard]] Span plain(Span span, const CallSite& site) const {
    TESSERA_REQUIRE(span.device == device_,
                    Unsupported,
                    fmt::format("{}: a collective of {} with memory of {}",
                                describe(site),
                                to_text(device_),
                                to_text(span.device)),
                    "use World::host_transport() for memory of the host");
    span.device = {};
    return span;
  }

  static bool failed(int result) {
    constexpr int kInProgress = 7;  // ncclInProgress
    return result != 0 && result != kInProgress;
  }
  [[nodiscard]] std::string words(int result) const {
    return fmt::format("NCCL: {}", api_.error_string(result));
  }
  void check(int result, const CallSite& site) const {
    TESSERA_REQUIRE(!failed(result),
                    Comm,
                    fmt::format("{}: {}", describe(site), words(result)),
                    "see the messages of NCCL_DEBUG=WARN");
  }

  [[nodiscard]] static void* native(const Lane& lane) { return lane.stream->native_handle(); }

  /// Collective on first use of the group.
  Lane& lane_of(const Group& group, const CallSite& site) {
    const auto [found, fresh] = lanes_.try_emplace(group.id);
    Lane& lane = found->second;
    if (!fresh) return lane;
    NcclId id;
    if (group.index == 0) check(api_.get_unique_id(&id), site);
    host_
        ->broadcast(group,
                    {id.bytes, sizeof(id.bytes), DType::U8, {}},
                    0,
                    TESSERA_HERE("the id of a communicator"))
        ->wait();
    check(api_.comm_init_rank(&lane.comm, group.size(), id, group.index), site);
    lane.stream = guard_.getStreamFromGlobalPool(to_torch(device_));
    return lane;
  }

  /// Calls `post` on the stream of the group, after what the current stream has so far.
  template <class Fn>
  WorkPtr on_lane(const Group& group, const CallSite& site, Fn post) {
    Lane& lane = lane_of(group, site);
    c10::Event ready(guard_.type());
    ready.record(guard_.getStream(to_torch(device_)));
    ready.block(*lane.stream);
    std::vector<at::Tensor> kept;
    {
      const c10::StreamGuard guard(*lane.stream);
      post(lane, kept);
    }
    return std::make_unique<EventWork>(*lane.stream, std::move(kept));
  }

  /// Sends part j to member j, and receives part i from member i.
  void exchange(Lane& lane,
                const void* in,
                const std::vector<std::size_t>& sent,
                void* out,
                const std::vector<std::size_t>& received,
                const CallSite& site) {
    const auto* const from = static_cast<const std::byte*>(in);
    auto* const to = static_cast<std::byte*>(out);
    check(api_.group_start(), site);
    for (std::size_t i = 0; i + 1 < sent.size(); ++i) {
      const auto peer = static_cast<int>(i);
      const std::size_t out_bytes = sent[i + 1] - sent[i], in_bytes = received[i + 1] - received[i];
      if (out_bytes > 0) {
        check(api_.send(from + sent[i], out_bytes, kBytes, peer, lane.comm, native(lane)), site);
      }
      if (in_bytes > 0) {
        check(api_.recv(to + received[i], in_bytes, kBytes, peer, lane.comm, native(lane)), site);
      }
    }
    check(api_.group_end(), site);
  }

  NcclApi api_;
  std::shared_ptr<comm::Transport> host_;
  std::unique_ptr<comm::Transport> staged_;
  Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::map<int, Lane> lanes_;  ///< by the id of the group
  Traffic traffic_;
  std::map<int, Traffic> traffic_of_;
};

const NcclApi& library(std::string& why_not) {
  static NcclApi api;
  static const std::string failure = load_nccl(api);
  why_not = failure;
  return api;
}

std::string why_not_nccl(const comm::WorldNeeds& /*needs*/) {
  std::string why;
  static_cast<void>(library(why));
  return why;
}

comm::MadeTransport make_nccl(const comm::WorldNeeds& needs,
                              ControlPage* /*control*/,
                              const std::shared_ptr<comm::Transport>& host) {
  std::string why;
  return {make_nccl_transport(library(why), host, needs.device), {}};
}

TESSERA_TRANSPORT("nccl", {.moves = DeviceKind::Cuda, .why_not = why_not_nccl, .make = make_nccl});

}  // namespace

std::string load_nccl(NcclApi& api) {
  constexpr const char* kLibrary = "libnccl.so.2";
  void* const library = dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("{} cannot be loaded", kLibrary);
  std::string missing;
  const auto find = [&](const char* name, auto& place) {
    place = reinterpret_cast<std::remove_reference_t<decltype(place)>>(dlsym(library, name));
    if (place == nullptr && missing.empty()) missing = fmt::format("{} has no {}", kLibrary, name);
  };
  find("ncclGetVersion", api.get_version);
  find("ncclGetUniqueId", api.get_unique_id);
  find("ncclCommInitRank", api.comm_init_rank);
  find("ncclCommAbort", api.comm_abort);
  find("ncclCommGetAsyncError", api.comm_get_async_error);
  find("ncclAllGather", api.all_gather);
  find("ncclBroadcast", api.broadcast);
  find("ncclSend", api.send);
  find("ncclRecv", api.recv);
  find("ncclGroupStart", api.group_start);
  find("ncclGroupEnd", api.group_end);
  find("ncclGetErrorString", api.error_string);
  return missing;
}

std::unique_ptr<comm::Transport> make_nccl_transport(const NcclApi& api,
                                                     std::shared_ptr<comm::Transport> host,
                                                     Device device) {
  return std::make_unique<NcclTransport>(api, std::move(host), device);
}

}  // namespace tessera::transports
