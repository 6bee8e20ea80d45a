// SPDX-License-Identifier: Apache-2.0
#include "tessera/transports/nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/message_channels.h"
#include "tessera/comm/registry.h"
#include "tessera/comm/transports/local.h"
#include "tessera/ops/reduce_parts.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"
#include "tessera/transports/nccl_watch.h"
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

/// Complete when an event on the stream of its lane is.
class EventWork final : public comm::Work {
 public:
  EventWork(const c10::Stream& stream,
            std::shared_ptr<c10::Event> done,
            std::vector<at::Tensor> kept,
            const NcclWatch& watch)
      : guard_(stream.device_type()),
        device_(stream.device()),
        done_(std::move(done)),
        kept_(std::move(kept)),
        watch_(watch) {}
  bool done() override { return done_->query(); }
  void wait() override {
    watch_.throw_if_broken();
    done_->block(guard_.getStream(device_));
  }
  void wait_reusable() override { wait(); }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device device_;
  std::shared_ptr<c10::Event> done_;
  std::vector<at::Tensor> kept_;  ///< buffers that belong to the stream of the lane
  const NcclWatch& watch_;
};

/// A message of which a copy is sent.
class SentWork final : public comm::Work {
 public:
  bool done() override { return true; }
  void wait() override {}
  void wait_reusable() override {}
};

/// The parts of an exchange: the first byte of each, and one more entry.
std::vector<std::size_t> equal_parts(std::size_t bytes, int parts) {
  std::vector<std::size_t> out;
  for (int i = 0; i <= parts; ++i)
    out.push_back(bytes / static_cast<std::size_t>(parts) * static_cast<std::size_t>(i));
  return out;
}

class NcclTransport final : public comm::Transport, public comm::MessageChannels {
 public:
  NcclTransport(const NcclApi& api,
                std::shared_ptr<comm::Transport> host,
                Device device,
                const NcclRank& rank)
      : api_(api),
        host_(std::move(host)),
        staged_(make_staged_transport(host_, device)),
        device_(device),
        guard_(to_torch(device).type()),
        rank_(rank.rank),
        control_(rank.control),
        watch_(rank.rank, rank.control, [this] { abort_all(); }) {}
  /// After an error peers may wait for ever, so that nothing is waited for.
  ~NcclTransport() override {
    const bool is_broken = control_ != nullptr && control_->aborted.load() != 0;
    if (is_broken || std::uncaught_exceptions() > 0) abort_all();
    const std::lock_guard lock(comms_mutex_);
    for (void* const comm : comms_)
      api_.comm_destroy(comm);
    comms_.clear();
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
    return on_group(group, "reduce_scatter", site, [&](Lane& lane, std::vector<at::Tensor>& kept) {
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
    return on_group(group, "all_gather", site, [&](Lane& lane, std::vector<at::Tensor>&) {
      check(api_.all_gather(in.data, out.data, in.bytes(), kBytes, lane.comm, native(lane)), site);
    });
  }
  WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) override {
    check_all_reduce(plain(data, site), op, site);
    count(group, data, 2);
    return on_group(group, "all_reduce", site, [&](Lane& lane, std::vector<at::Tensor>& kept) {
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
    return on_group(group, "broadcast", site, [&](Lane& lane, std::vector<at::Tensor>&) {
      check(api_.broadcast(
                data.data, data.data, data.bytes(), kBytes, root_index, lane.comm, native(lane)),
            site);
    });
  }
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override {
    check_all_to_all(group, plain(in, site), plain(out, site), site);
    count(group, in);
    const std::vector<std::size_t> places = equal_parts(in.bytes(), group.size());
    return on_group(group, "all_to_all", site, [&](Lane& lane, std::vector<at::Tensor>&) {
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
    return on_group(group, "all_to_all_v", site, [&](Lane& lane, std::vector<at::Tensor>&) {
      exchange(lane, in.data, sent, out.data, received, site);
    });
  }
  WorkPtr barrier(const Group& group, CallSite site) override {
    return host_->barrier(group, std::move(site));
  }
  void open_channels(std::span<const comm::MessageChannel> channels,
                     const CallSite& site) override {
    for (const comm::MessageChannel& channel : channels) {
      const bool sends = channel.from == rank_;
      if (channel.from == channel.to || (!sends && channel.to != rank_)) continue;
      const int peer = sends ? channel.to : channel.from;
      const std::tuple key(peer, channel.channel, sends);
      if (messages_.contains(key) || !both_have_queues(peer, channel.channel)) continue;
      const Group ends{{channel.from, channel.to}, sends ? 0 : 1, 0};
      NcclId id;
      const Span bytes{id.bytes, sizeof(id.bytes), DType::U8, {}};
      if (sends) check(api_.get_unique_id(&id), site);
      const CallSite of_id = TESSERA_HERE("the id of a channel");
      (sends ? host_->send(peer, channel.channel, bytes, of_id)
             : host_->recv(peer, channel.channel, bytes, of_id))
          ->wait();
      Lane& lane = messages_.emplace(key, connect(ends, id, site)).first->second;
      const at::Tensor first = at::zeros({1}, at::device(to_torch(device_)).dtype(at::kByte));
      message(lane, sends, span_of(first), site)->wait();
    }
  }
  WorkPtr send(int peer, int channel, Span data, CallSite site) override {
    const auto lane = messages_.find({peer, channel, true});
    if (lane == messages_.end()) return staged_->send(peer, channel, data, std::move(site));
    (void)plain(data, site);
    const Traffic more = {
        static_cast<std::int64_t>(data.count), static_cast<std::int64_t>(data.bytes()), 1};
    add(traffic_, more);
    add(messages_traffic_, more);
    static_cast<void>(message(lane->second, true, data, site));
    return std::make_unique<SentWork>();
  }
  WorkPtr recv(int peer, int channel, Span data, CallSite site) override {
    const auto lane = messages_.find({peer, channel, false});
    if (lane == messages_.end()) return staged_->recv(peer, channel, data, std::move(site));
    (void)plain(data, site);
    return message(lane->second, false, data, site);
  }

  void progress() noexcept override {
    host_->progress();
    const std::lock_guard lock(comms_mutex_);
    for (void* const comm : comms_) {
      int result = 0;
      if (api_.comm_get_async_error(comm, &result) != 0 || !failed(result)) continue;
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
  [[nodiscard]] Traffic messages() const noexcept override {
    Traffic out = host_->messages();
    add(out, messages_traffic_);
    return out;
  }
  void set_stall_limit(double seconds) noexcept override {
    host_->set_stall_limit(seconds);
    watch_.set_limit(seconds);
  }

 private:
  /// A communicator and the stream of its operations.
  struct Lane {
    void* comm = nullptr;
    std::optional<c10::Stream> stream;
    std::vector<int> others;  ///< the other ranks of the world in it
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

  /// Returns the same on both ends of a channel.
  bool both_have_queues(int peer, int channel) {
    const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    std::uint8_t here = queues == nullptr || std::atoi(queues) >= kLeastQueues ? 1 : 0, there = 0;
    const auto span = [](std::uint8_t& value) { return Span{&value, 1, DType::U8, {}}; };
    const CallSite site = TESSERA_HERE("the hardware queues of a channel's ends");
    const WorkPtr sent = host_->send(peer, channel, span(here), site);
    host_->recv(peer, channel, span(there), site)->wait();
    sent->wait();
    sent->wait_reusable();
    if (here == 0 && !warned_) {
      warned_ = true;
      log::warn(fmt::format(
          "CUDA_DEVICE_MAX_CONNECTIONS={}: messages between pipeline stages go through the host; "
          "unset it, or set it to {} or more",
          queues,
          kLeastQueues));
    }
    return here == 1 && there == 1;
  }
  /// Called by the watch, and before this is destroyed after an error.
  void abort_all() {
    constexpr std::chrono::seconds kPatience{2};
    std::unique_lock lock(comms_mutex_);
    aborted_ = true;
    // A call of this rank must not use a communicator that is gone. One that waits for other ranks
    // within NCCL is ended by the abort itself.
    idle_.wait_for(lock, kPatience, [this] { return !calling_; });
    for (void* const comm : comms_)
      api_.comm_abort(comm);
    comms_.clear();
  }

  /// Collective for the ranks of `group`, of which member 0 has made the id. A communicator that is
  /// made while abort_all() runs is aborted at once.
  [[nodiscard]] Lane connect(const Group& group, const NcclId& id, const CallSite& site) {
    Lane lane;
    call_nccl(site, [&] {
      check(api_.comm_init_rank(&lane.comm, group.size(), id, group.index), site);
      {
        const std::lock_guard lock(comms_mutex_);
        if (!aborted_) {
          comms_.push_back(lane.comm);
          return;
        }
      }
      api_.comm_abort(lane.comm);
      throw_ended(site);
    });
    lane.stream = guard_.getStreamFromGlobalPool(to_torch(device_));
    for (const int rank : group.ranks) {
      if (rank != rank_) lane.others.push_back(rank);
    }
    return lane;
  }
  [[noreturn]] void throw_ended(const CallSite& site) const {
    watch_.throw_if_broken();
    throw Error(Error::Kind::Comm,
                "NCCL's operations were ended before " + describe(site),
                "see the error of the rank that failed");
  }
  /// Calls NCCL with the communicators, which no abort takes away meanwhile.
  template <class Fn>
  void call_nccl(const CallSite& site, Fn fn) {
    struct Call {
      NcclTransport& all;
      ~Call() {
        {
          const std::lock_guard lock(all.comms_mutex_);
          all.calling_ = false;
        }
        all.idle_.notify_all();
      }
    };
    const bool ended = [this] {
      const std::lock_guard lock(comms_mutex_);
      calling_ = !aborted_;
      return aborted_;
    }();
    if (ended) throw_ended(site);
    const Call call{*this};
    fn();
  }
  /// Collective on first use of the group.
  Lane& lane_of(const Group& group, const CallSite& site) {
    if (const auto made = lanes_.find(group.id); made != lanes_.end()) return made->second;
    NcclId id;
    if (group.index == 0) check(api_.get_unique_id(&id), site);
    host_
        ->broadcast(group,
                    {id.bytes, sizeof(id.bytes), DType::U8, {}},
                    0,
                    TESSERA_HERE("the id of a communicator"))
        ->wait();
    // NCCL waits for the other ranks without a limit of time; this wait has one.
    host_->barrier(group, TESSERA_HERE("a new communicator"))->wait();
    return lanes_.emplace(group.id, connect(group, id, site)).first->second;
  }

  /// Calls `post` on the stream of a lane, after what the current stream has so far.
  template <class Fn>
  WorkPtr on_lane(Lane& lane, const char* operation, const CallSite& site, Fn post) {
    watch_.throw_if_broken();
    const bool watched = !lane.others.empty();
    if (watched)
      watch_.begin(&lane, fmt::format("{} of {}", operation, describe(site)), lane.others);
    const auto event = [&](const c10::Stream& on) {
      auto out = std::make_shared<c10::Event>(guard_.type());
      out->record(on);
      return out;
    };
    const std::shared_ptr<c10::Event> ready = event(guard_.getStream(to_torch(device_)));
    ready->block(*lane.stream);
    std::vector<at::Tensor> kept;
    {
      const c10::StreamGuard guard(*lane.stream);
      call_nccl(site, [&] { post(lane, kept); });
    }
    std::shared_ptr<c10::Event> done = event(*lane.stream);
    if (watched) watch_.posted(&lane, ready, done);
    return std::make_unique<EventWork>(*lane.stream, std::move(done), std::move(kept), watch_);
  }
  template <class Fn>
  WorkPtr on_group(const Group& group, const char* operation, const CallSite& site, Fn post) {
    return on_lane(lane_of(group, site), operation, site, std::move(post));
  }
  /// Sends a copy of `data` to the other rank of a channel, or receives it.
  WorkPtr message(Lane& lane, bool sends, const Span& data, const CallSite& site) {
    if (!sends) {
      return on_lane(lane, "recv", site, [&](Lane& on, std::vector<at::Tensor>&) {
        check(api_.recv(data.data, data.bytes(), kBytes, 0, on.comm, native(on)), site);
      });
    }
    const at::Tensor copy = tensor_of(data).clone();
    copy.record_stream(*lane.stream);
    return on_lane(lane, "send", site, [&](Lane& on, std::vector<at::Tensor>&) {
      check(api_.send(copy.const_data_ptr(), data.bytes(), kBytes, 1, on.comm, native(on)), site);
    });
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
  int rank_;
  ControlPage* control_;  ///< may be nullptr
  bool warned_ = false;
  std::map<int, Lane> lanes_;  ///< by the id of the group
  /// Of opened channels, by the other rank, the channel, and whether this rank sends.
  std::map<std::tuple<int, int, bool>, Lane> messages_;
  Traffic traffic_, messages_traffic_;
  std::map<int, Traffic> traffic_of_;
  std::mutex comms_mutex_;
  std::condition_variable idle_;
  bool aborted_ = false, calling_ = false;
  std::vector<void*> comms_;  ///< of all lanes, until they are aborted
  NcclWatch watch_;           ///< its thread ends first
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
                              ControlPage* control,
                              const std::shared_ptr<comm::Transport>& host) {
  std::string why;
  // NCCL's ranks find each other by sockets, which other hosts need not reach.
  if (needs.part == nullptr) setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  return {make_nccl_transport(library(why), host, needs.device, {needs.info.rank, control}), {}};
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
  find("ncclCommDestroy", api.comm_destroy);
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
                                                     Device device,
                                                     const NcclRank& rank) {
  return std::make_unique<NcclTransport>(api, std::move(host), device, rank);
}

}  // namespace tessera::transports
