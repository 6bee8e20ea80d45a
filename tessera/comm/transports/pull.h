// SPDX-License-Identifier: Apache-2.0
// Transport that implements the pull protocol, shared by the transports of one host and, with a
// bridge (host_bridge.h), of several.
//
// Posting writes {sequence, operation, dtype, count, call, location of the input} to the ring of
// this rank and returns. Only the consumer moves data: in wait(), done() or progress() it reads the
// inputs of its peers where they are, reduces or copies them into its own output, and acknowledges.
// Peers can therefore finish an operation while a rank that has posted it is not running (except
// for large sums between hosts, host_chain.h), and no order of waits can deadlock. A rank that
// waits moves other data that is ready for it, then spins for at most 300 us (not at all if there
// are more ranks than processors), then sleeps until a peer rings its doorbell.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transport.h"
#include "tessera/comm/transports/arena.h"
#include "tessera/comm/transports/channel.h"
#include "tessera/comm/transports/host_bridge.h"
#include "tessera/comm/transports/host_chain.h"
#include "tessera/comm/transports/operation.h"

namespace tessera::comm {

/// Serves one world: the arenas must be zero-filled and are not reused.
class PullTransport final : public Transport {
 public:
  PullTransport(std::string name, int rank, Arenas arenas, ControlPage& control);
  /// For several hosts; the name is that of the link.
  PullTransport(int rank,
                Arenas arenas,
                ControlPage& control,
                HostLayout layout,
                std::unique_ptr<HostLink> link);
  ~PullTransport() override;

  [[nodiscard]] std::string_view name() const override { return name_; }
  RegionPtr allocate(std::size_t bytes, memory::Tag tag) override;
  WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) override;
  WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) override;
  WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) override;
  WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) override;
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override;
  WorkPtr all_to_all_v(const Group& group,
                       Span in,
                       Span out,
                       std::span<const std::int64_t> counts,
                       CallSite site) override;
  WorkPtr barrier(const Group& group, CallSite site) override;
  WorkPtr send(int peer, int channel, Span data, CallSite site) override;
  WorkPtr recv(int peer, int channel, Span data, CallSite site) override;
  void progress() noexcept override;
  void abort(const Error& error) noexcept override;
  double take_comm_seconds() noexcept override;
  [[nodiscard]] Traffic traffic() const noexcept override { return traffic_; }
  [[nodiscard]] Traffic traffic(const Group& group) const override;
  [[nodiscard]] Traffic messages() const noexcept override { return sent_; }
  void set_stall_limit(double seconds) noexcept override { stall_limit_s_ = seconds; }

 private:
  class PulledWork;
  class Timed;
  using Parts = std::vector<PullParts::Part>;
  /// The operation or message that the wait loop waits for.
  struct Awaited {
    std::string what;
    std::function<bool()> ready;
    std::function<void(std::vector<int>&)> missing;
  };

  Channel& group_channel(const Group& group);
  Channel& message_channel(int sender, int receiver, int number);
  Operation::Start start(Channel& channel, Kind kind, const Span& data, const CallSite& site);
  void claim_slot(Operation::Start& begin);
  void offer(Operation::Start& begin,
             const Span& in,
             int readers,
             bool copy,
             const Span& unread = {nullptr, 0, DType::U8, {}});
  void keep(Operation::Start& begin, const Span& span);
  RegionPtr stage(const Span& in, const Span& unread);
  RegionPtr room(std::size_t least);
  HostChain::Room rooms() {
    return [this](std::size_t bytes) { return room(bytes); };
  }
  void forget_drained();
  Parts parts_from_all(Channel& channel, const Span& out, std::size_t offset);
  WorkPtr track(std::shared_ptr<Operation> operation);

  void wait(Operation& operation);
  void wait_reusable(Operation& operation);
  bool done(Operation& operation);
  void await(const Awaited& awaited);
  bool spin(const std::function<bool()>& ready);
  bool move_all();
  void count(Traffic& part, const Span& span, std::int64_t times = 1);
  void count(const Group& group, const Span& span, std::int64_t times = 1);
  void finish(const Operation& operation);
  void require_whole_world();
  void write_flights() noexcept;
  [[noreturn]] void report_stall(const Awaited& awaited, const std::vector<int>& missing);

  std::string name_;
  std::shared_ptr<ChannelContext> context_;
  std::unique_ptr<HostBridge> bridge_;  ///< null: one host
  std::map<int, std::unique_ptr<Channel>> groups_;
  std::map<std::array<int, 3>, std::unique_ptr<Channel>> messages_;
  std::vector<std::shared_ptr<Operation>> pending_;  ///< posted and not drained, in order
  std::vector<RegionPtr> staging_;  ///< staging buffers; those without another owner are free
  double stall_limit_s_ = kStallLimit;
  double comm_s_ = 0;
  Traffic traffic_;
  Traffic sent_;                       ///< part of traffic_
  std::map<int, Traffic> traffic_of_;  ///< part of traffic_, by the id of the group
  int timers_ = 0;
  int exceptions_ = std::uncaught_exceptions();
  bool wrote_flights_ = false;
};

}  // namespace tessera::comm
