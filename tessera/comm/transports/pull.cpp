// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/pull.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/comm/copy.h"
#include "tessera/comm/cost.h"
#include "tessera/comm/doorbell.h"
#include "tessera/comm/transports/local.h"
#include "tessera/comm/transports/travel_memory.h"
#include "tessera/comm/watchdog.h"

namespace tessera::comm {
namespace {

/// Longer than it takes to fall asleep and be woken. On a virtual machine, whose processor goes
/// back to the host, that takes as long as reducing a few megabytes.
constexpr double kSpinSeconds = 300e-6;
/// An event of a peer rings the doorbell; this only bounds how late a stall is noticed.
constexpr double kSleepSeconds = 0.1;

void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

bool overlap(const Span& a, const Span& b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return std::less<>()(a_begin, b_begin + b.bytes()) && std::less<>()(b_begin, a_begin + a.bytes());
}

}  // namespace

/// Adds the time of the outermost scope to the communication time of the rank.
class PullTransport::Timed {
 public:
  explicit Timed(PullTransport& transport) : transport_(transport) {
    if (transport_.timers_++ == 0) begin_ = now_s();
  }
  ~Timed() {
    if (--transport_.timers_ == 0) transport_.comm_s_ += now_s() - begin_;
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  PullTransport& transport_;
  double begin_ = 0;
};

class PullTransport::PulledWork final : public Work {
 public:
  PulledWork(PullTransport& transport, std::shared_ptr<Operation> operation)
      : transport_(transport),
        context_(transport.context_),
        operation_(std::move(operation)),
        exceptions_(std::uncaught_exceptions()),
        posted_(trace::heard() ? now_s() : 0) {}
  ~PulledWork() override {
    if (operation_->complete()) return;
    operation_->cancel();
    // While an exception unwinds the caller, that exception is what gets reported.
    if (context_->closed || context_->aborted() || std::uncaught_exceptions() > exceptions_) return;
    abort_world(
        context_->control,
        context_->rank,
        Error(Error::Kind::Bug, "an operation was dropped before wait(): " + operation_->site()));
  }
  PulledWork(const PulledWork&) = delete;
  PulledWork& operator=(const PulledWork&) = delete;
  bool done() override { return transport_.done(*operation_); }
  void wait() override {
    if (posted_ == 0) return transport_.wait(*operation_);
    const double begin = now_s();
    transport_.wait(*operation_);
    tell(trace::Kind::Wait, begin);
    tell(trace::Kind::Collective, std::exchange(posted_, 0));
  }
  void wait_reusable() override { transport_.wait_reusable(*operation_); }

 private:
  void tell(trace::Kind kind, double begin) const {
    trace::tell({.kind = kind,
                 .name = comm::name(operation_->kind()),
                 .detail = operation_->site(),
                 .begin = begin,
                 .end = now_s(),
                 .bytes = static_cast<double>(operation_->bytes()),
                 .ranks = operation_->members()});
  }
  PullTransport& transport_;
  std::shared_ptr<ChannelContext> context_;
  std::shared_ptr<Operation> operation_;
  int exceptions_;
  /// Time of posting, if there is a listener and the operation was not waited for; else 0.
  double posted_;
};

PullTransport::PullTransport(std::string name, int rank, Arenas arenas, ControlPage& control)
    : name_(std::move(name)),
      context_(std::make_shared<ChannelContext>(rank, std::move(arenas), control)) {}

PullTransport::PullTransport(int rank,
                             Arenas arenas,
                             ControlPage& control,
                             HostLayout layout,
                             std::unique_ptr<HostLink> link)
    : name_(fmt::format("shm and {}", link->name())) {
  const int host = layout.host_of(rank);
  context_ = std::make_shared<ChannelContext>(
      rank, std::move(arenas), control, std::pair(layout.begin(host), layout.size(host)));
  bridge_ = std::make_unique<HostBridge>(*context_, std::move(layout), std::move(link));
}

PullTransport::~PullTransport() {
  if (context_->aborted()) write_flights();
  // A rank that leaves with an error notifies the others once its world has ended.
  if (std::uncaught_exceptions() > exceptions_ && !wrote_flights_)
    write_flight(context_->rank, context_->header(context_->rank).flight, context_->control);
  bridge_.reset();
  // Peers may still read what was posted: the arena keeps its contents.
  context_->arena->close();
  context_->closed = true;
}

RegionPtr PullTransport::allocate(std::size_t bytes, memory::Tag tag) {
  return context_->arena->allocate(bytes, tag);
}

WorkPtr PullTransport::reduce_scatter(
    const Group& group, Span in, Span out, Op op, Write write, CallSite site) {
  check_reduce_scatter(group, in, out, op, site);
  const Span own = in.part(out.count * static_cast<std::size_t>(group.index), out.count);
  TESSERA_REQUIRE(!overlap(in, out) || own.data == out.data,
                  Shape,
                  fmt::format("{}: the output overlaps parts that peers read", describe(site)),
                  "use a separate output, or this rank's own part of the input");
  Operation::Start begin = start(group_channel(group), Kind::ReduceScatter, in, site);
  if (group.size() == 1) {
    reduce_scatter_alone(in, out, op, write);
    return completed_work(context_->control);
  }
  begin.signature.op = op;
  count(group, in);
  const HostColumn* const chain = bridge_ ? bridge_->column(group) : nullptr;
  begin.local = chain != nullptr && chain_reduce_scatter(*chain, in.dtype, in.bytes(), write);
  claim_slot(begin);
  if (begin.local) {
    keep(begin, out);
    auto operation = std::make_shared<ChainReduceScatter>(
        std::move(begin), *context_, *bridge_, *chain, out, write, rooms());
    offer(operation->start(), in, group.size(), false);
    return track(std::move(operation));
  }
  offer(begin, in, group.size(), false, own);
  keep(begin, out);
  const std::size_t offset = own.bytes() * static_cast<std::size_t>(group.index);
  return track(
      std::make_shared<ReduceParts>(std::move(begin), *context_, offset, out, write, own.data));
}

WorkPtr PullTransport::all_gather(const Group& group, Span in, Span out, CallSite site) {
  check_all_gather(group, in, out, site);
  const Span place = out.part(in.count * static_cast<std::size_t>(group.index), in.count);
  Operation::Start begin = start(group_channel(group), Kind::AllGather, in, site);
  if (group.size() == 1) {
    copy_alone(in, out);
    return completed_work(context_->control);
  }
  count(group, out);
  claim_slot(begin);
  const bool apart = in.data == place.data || !overlap(in, out);
  offer(begin, in, group.size() - 1, !apart);
  keep(begin, out);
  copy_alone(in, place);
  Parts parts = parts_from_all(begin.channel, out, 0);
  std::erase_if(parts, [&](const auto& part) { return part.member == group.index; });
  return track(std::make_shared<PullParts>(std::move(begin), *context_, std::move(parts)));
}

WorkPtr PullTransport::all_to_all(const Group& group, Span in, Span out, CallSite site) {
  check_all_to_all(group, in, out, site);
  Operation::Start begin = start(group_channel(group), Kind::AllToAll, in, site);
  if (group.size() == 1) {
    copy_alone(in, out);
    return completed_work(context_->control);
  }
  count(group, in);
  claim_slot(begin);
  offer(begin, in, group.size(), overlap(in, out));
  keep(begin, out);
  const std::size_t part_bytes = in.bytes() / static_cast<std::size_t>(group.size());
  Parts parts =
      parts_from_all(begin.channel, out, part_bytes * static_cast<std::size_t>(group.index));
  return track(std::make_shared<PullParts>(std::move(begin), *context_, std::move(parts)));
}

WorkPtr PullTransport::all_reduce(const Group& group, Span data, Op op, CallSite site) {
  check_all_reduce(data, op, site);
  Operation::Start begin = start(group_channel(group), Kind::AllReduce, data, site);
  if (group.size() == 1) return completed_work(context_->control);
  begin.signature.op = op;
  count(group, data, times_moved(Kind::AllReduce));
  claim_slot(begin);
  const HostColumn* const chain = bridge_ ? bridge_->column(group) : nullptr;
  begin.local = chain != nullptr && chain_all_reduce(*chain, data.dtype, data.bytes());
  if (begin.local) {
    keep(begin, data);
    auto operation = std::make_shared<ChainAllReduce>(
        std::move(begin), *context_, *bridge_, *chain, data.data, rooms());
    offer(operation->start(), data, group.size(), false);
    return track(std::move(operation));
  }
  // A host cannot write into the memory of another host: every rank adds all inputs.
  const bool crosses = bridge_ && bridge_->crosses(group.ranks);
  if (data.bytes() <= kMailboxBytes || crosses) {
    offer(begin, data, group.size(), true);
    keep(begin, data);
    return track(std::make_shared<ReduceParts>(std::move(begin), *context_, 0, data, Write::Store));
  }
  offer(begin, data, group.size(), false);
  keep(begin, data);
  void* const copy_to = begin.borrows ? nullptr : data.data;
  return track(std::make_shared<ReduceInPlace>(std::move(begin), *context_, copy_to));
}

WorkPtr PullTransport::broadcast(const Group& group, Span data, int root_index, CallSite site) {
  check_broadcast(group, data, root_index, site);
  Operation::Start begin = start(group_channel(group), Kind::Broadcast, data, site);
  if (group.size() == 1) return completed_work(context_->control);
  begin.signature.root = root_index;
  count(group, data);
  claim_slot(begin);
  if (group.index == root_index) {
    offer(begin, data, group.size() - 1, false);
    return track(std::make_shared<Operation>(std::move(begin)));
  }
  offer(begin, data.part(0, 0), 0, true);
  keep(begin, data);
  return track(std::make_shared<PullParts>(
      std::move(begin), *context_, Parts{{root_index, 0, data.data, data.bytes()}}));
}

WorkPtr PullTransport::barrier(const Group& group, CallSite site) {
  const Span nothing{nullptr, 0, DType::U8, {}};
  Operation::Start begin = start(group_channel(group), Kind::Barrier, nothing, site);
  if (group.size() == 1) return completed_work(context_->control);
  claim_slot(begin);
  offer(begin, nothing, group.size(), true);
  return track(
      std::make_shared<ReduceParts>(std::move(begin), *context_, 0, nothing, Write::Store));
}

WorkPtr PullTransport::send(int peer, int channel, Span data, CallSite site) {
  check_message(context_->rank, context_->arenas.ranks(), peer, data, site);
  Operation::Start begin =
      start(message_channel(context_->rank, peer, channel), Kind::Message, data, site);
  count(sent_, data);
  claim_slot(begin);
  offer(begin, data, 1, false);
  return track(std::make_shared<Operation>(std::move(begin)));
}

WorkPtr PullTransport::recv(int peer, int channel, Span data, CallSite site) {
  check_message(context_->rank, context_->arenas.ranks(), peer, data, site);
  Operation::Start begin =
      start(message_channel(peer, context_->rank, channel), Kind::Message, data, site);
  keep(begin, data);
  return track(std::make_shared<PullParts>(
      std::move(begin), *context_, Parts{{0, 0, data.data, data.bytes()}}));
}

void PullTransport::progress() noexcept {
  if (pending_.empty() || context_->aborted()) return;
  try {
    const Timed timed(*this);
    move_all();
  } catch (const Error& error) {
    abort(error);  // the next wait throws it
  } catch (const std::exception& error) {
    abort(Error(Error::Kind::Bug, error.what()));
  }
}

void PullTransport::abort(const Error& error) noexcept {
  abort_world(context_->control, context_->rank, error);
}

/// Counts the span in the total traffic and in `part`.
void PullTransport::count(Traffic& part, const Span& span, std::int64_t times) {
  for (Traffic* const traffic : {&traffic_, &part}) {
    traffic->elements += times * static_cast<std::int64_t>(span.count);
    traffic->bytes += times * static_cast<std::int64_t>(span.bytes());
    ++traffic->calls;
  }
}

void PullTransport::count(const Group& group, const Span& span, std::int64_t times) {
  count(traffic_of_[group.id], span, times);
}

Traffic PullTransport::traffic(const Group& group) const {
  const auto found = traffic_of_.find(group.id);
  return found == traffic_of_.end() ? Traffic() : found->second;
}

double PullTransport::take_comm_seconds() noexcept {
  return std::exchange(comm_s_, 0.0);
}

Channel& PullTransport::group_channel(const Group& group) {
  std::unique_ptr<Channel>& channel = groups_[group.id];
  if (!channel)
    channel = std::make_unique<Channel>(*context_, group.ranks, group.index, group_key(group.id));
  TESSERA_ASSERT(channel->ranks() == group.ranks);
  return *channel;
}

Channel& PullTransport::message_channel(int sender, int receiver, int number) {
  std::unique_ptr<Channel>& channel = messages_[{sender, receiver, number}];
  if (!channel) {
    const int index = sender == context_->rank ? 0 : 1;
    channel = std::make_unique<Channel>(
        *context_, std::vector<int>{sender, receiver}, index, channel_key(receiver, number));
  }
  return *channel;
}

Operation::Start PullTransport::start(Channel& channel,
                                      Kind kind,
                                      const Span& data,
                                      const CallSite& site) {
  require_whole_world();
  Operation::Start begin{channel};
  begin.signature.kind = kind;
  begin.signature.dtype = data.dtype;
  begin.signature.count = data.count;
  begin.signature.members = channel.members_hash();
  begin.site = describe(site);
  publish_operation(
      context_->control, context_->rank, fmt::format("{} {}", comm::name(kind), begin.site));
  if (channel.size() > 1) begin.sequence = channel.next_sequence();
  const RankLine& line = context_->control.line(context_->rank);
  begin.number = line.last_seq.load(std::memory_order_relaxed);
  context_->header(context_->rank)
      .flight.post(begin.number,
                   begin.sequence,
                   line.step.load(std::memory_order_relaxed),
                   channel.rank_list(),
                   fmt::format("{} {}", comm::name(kind), begin.site));
  return begin;
}

/// Claims the slot of the operation; waits only if kSlots operations of the channel are in
/// progress.
void PullTransport::claim_slot(Operation::Start& begin) {
  Slot& slot = begin.channel.own(begin.sequence);
  begin.slot = &slot;
  if (slot.free()) return;
  const Channel& channel = begin.channel;
  const auto readers = [&](std::vector<int>& ranks) {
    ranks.clear();
    for (int member = 0; member < channel.size(); ++member)
      if (member != channel.index() && !slot.acked_by(static_cast<std::size_t>(member)))
        ranks.push_back(channel.rank_of(member));
  };
  await({"room to post " + begin.site, [&] { return slot.free(); }, readers});
}

/// Publishes `in`: its own memory if peers can read it there and `copy` is false, otherwise a copy.
/// The bytes of `unread`, a part of `in`, are undefined in the copy.
void PullTransport::offer(
    Operation::Start& begin, const Span& in, int readers, bool copy, const Span& unread) {
  Slot& slot = *begin.slot;
  RegionPtr region = copy ? nullptr : context_->arena->find(in.data, in.bytes());
  const void* data = in.data;
  if (region) {
    begin.borrows = true;
  } else if (in.bytes() <= kMailboxBytes) {
    if (in.count != 0) std::memcpy(slot.mailbox.data(), in.data, in.bytes());
    data = slot.mailbox.data();
  } else {
    const Timed timed(*this);
    region = stage(in, unread);
    data = region->data();
  }
  if (region) begin.alive.push_back(std::move(region));
  slot.offset = context_->arena->offset_of(data);
  slot.readers = static_cast<std::uint32_t>(readers);
  begin.channel.publish(slot, begin.sequence, begin.signature, begin.site);
  if (bridge_) {
    bridge_->post(begin.channel,
                  begin.sequence,
                  begin.signature,
                  begin.site,
                  slot,
                  begin.local ? nullptr : static_cast<const std::byte*>(data),
                  in.bytes(),
                  begin.parts);
  }
}

/// Keeps the region of an output alive as long as the operation.
void PullTransport::keep(Operation::Start& begin, const Span& span) {
  if (RegionPtr region = context_->arena->find(span.data, span.bytes()))
    begin.alive.push_back(std::move(region));
}

/// Returns memory of at least this size, which is used again once nobody else has it.
RegionPtr PullTransport::room(std::size_t least) {
  const std::size_t bytes = staging_bytes(least);
  const auto fits = [&](const RegionPtr& region) {
    return region.use_count() == 1 && region->bytes() == bytes;
  };
  auto found = std::find_if(staging_.begin(), staging_.end(), fits);
  if (found == staging_.end()) {
    forget_drained();  // drops operations that peers have read in the meantime
    found = std::find_if(staging_.begin(), staging_.end(), fits);
  }
  if (found == staging_.end())
    found = staging_.insert(found, allocate(bytes, memory::Tag::Communication));
  else if (bridge_)
    bridge_->see_released_memory();
  return *found;
}

RegionPtr PullTransport::stage(const Span& in, const Span& unread) {
  RegionPtr region = room(in.bytes());
  const auto* const from = static_cast<const std::byte*>(in.data);
  auto* const to = static_cast<std::byte*>(region->data());
  const std::size_t first =
      unread.count == 0
          ? in.bytes()
          : static_cast<std::size_t>(static_cast<const std::byte*>(unread.data) - from);
  const std::size_t rest = std::min(first + unread.bytes(), in.bytes());
  copy_bytes(to, from, first);
  if (rest < in.bytes()) copy_bytes(to + rest, from + rest, in.bytes() - rest);
  return region;
}

/// Returns the parts of an output whose part i comes from member i, `offset` bytes into its input.
PullTransport::Parts PullTransport::parts_from_all(Channel& channel,
                                                   const Span& out,
                                                   std::size_t offset) {
  Parts parts;
  const std::size_t bytes = out.bytes() / static_cast<std::size_t>(channel.size());
  for (int member = 0; member < channel.size(); ++member) {
    auto* const place =
        static_cast<std::byte*>(out.data) + bytes * static_cast<std::size_t>(member);
    parts.push_back({member, offset, place, bytes});
  }
  return parts;
}

WorkPtr PullTransport::track(std::shared_ptr<Operation> operation) {
  pending_.push_back(operation);
  return std::make_unique<PulledWork>(*this, std::move(operation));
}

void PullTransport::wait(Operation& operation) {
  require_whole_world();
  if (operation.complete()) return finish(operation);
  await({operation.site(),
         [&] {
           operation.advance();
           return operation.complete();
         },
         [&](std::vector<int>& ranks) { operation.missing(ranks); }});
  finish(operation);
}

/// Notes in the flight recorder that this rank has waited for the operation.
void PullTransport::finish(const Operation& operation) {
  context_->header(context_->rank).flight.finish(operation.number());
}

/// Throws the error of a broken world, after the flight recorders of this host were written.
void PullTransport::require_whole_world() {
  if (!context_->aborted()) return;
  write_flights();
  throw_if_aborted(context_->control);
}

/// Writes the record of this rank, and of ranks of this host that cannot write their own.
void PullTransport::write_flights() noexcept {
  if (std::exchange(wrote_flights_, true)) return;
  ControlPage& control = context_->control;
  const auto [first, ranks] = context_->local();
  for (int rank = first; rank < first + ranks; ++rank) {
    const bool lost =
        control.line(rank).state.load() == static_cast<std::uint32_t>(RankState::Lost) ||
        control.abort_rank.load() == static_cast<std::uint32_t>(rank);
    if (rank == context_->rank || lost) write_flight(rank, context_->header(rank).flight, control);
  }
}

void PullTransport::wait_reusable(Operation& operation) {
  wait(operation);
  if (operation.reusable()) return;
  await({"the readers of " + operation.site(),
         [&] { return operation.reusable(); },
         [&](std::vector<int>& ranks) { operation.readers(ranks); }});
}

bool PullTransport::done(Operation& operation) {
  require_whole_world();
  if (operation.complete()) return true;
  const Timed timed(*this);
  move_all();
  return operation.complete();
}

void PullTransport::await(const Awaited& awaited) {
  const Timed timed(*this);
  Watchdog watchdog(context_->control, stall_limit_s_);
  std::vector<int> missing;
  for (;;) {
    require_whole_world();
    if (awaited.ready()) return;
    if (move_all()) continue;
    awaited.missing(missing);
    // Data from ranks of other hosts needs a processor to arrive.
    if (context_->any_here(missing) && spin(awaited.ready)) continue;
    awaited.missing(missing);
    DoorbellWait doorbell(
        context_->control, context_->rank, missing.empty() ? context_->rank : missing.front());
    if (context_->aborted() || awaited.ready() || move_all()) continue;
    doorbell.sleep(std::min(kSleepSeconds, stall_limit_s_));
    if (watchdog.stalled(missing)) {
      awaited.missing(missing);
      if (!missing.empty()) report_stall(awaited, missing);
    }
  }
}

/// Spins for a limited time; returns true if the operation is ready or the world was aborted.
bool PullTransport::spin(const std::function<bool()>& ready) {
  if (!context_->one_core_each()) return false;
  const double end = now_s() + kSpinSeconds;
  while (now_s() < end) {
    for (int i = 0; i < 16; ++i)
      relax();
    if (ready() || context_->aborted()) return true;
  }
  return false;
}

/// Moves what is ready, in the order of posting, and drops finished operations. Returns whether
/// anything moved.
bool PullTransport::move_all() {
  bool moved = false;
  for (const std::shared_ptr<Operation>& operation : pending_)
    moved = operation->advance() || moved;
  forget_drained();
  return moved;
}

void PullTransport::forget_drained() {
  std::erase_if(pending_, [](const std::shared_ptr<Operation>& operation) {
    return (operation->complete() || operation->cancelled()) && operation->drained();
  });
}

void PullTransport::report_stall(const Awaited& awaited, const std::vector<int>& missing) {
  ControlPage& control = context_->control;
  std::vector<std::string> ranks;
  for (const int rank : missing)
    ranks.push_back(comm::describe(control, rank));
  // A rank that itself waits for another is not the cause.
  const auto stuck = std::find_if(missing.begin(), missing.end(), [&](int rank) {
    return control.line(rank).waiting_for.load() == 0;
  });
  const int culprit = stuck == missing.end() ? missing.front() : *stuck;
  const Error error(Error::Kind::Comm,
                    fmt::format("rank {} hangs: rank {} has waited {} s in {} for {}",
                                culprit,
                                context_->rank,
                                stall_limit_s_,
                                awaited.what,
                                text::join_some(ranks, " and ")),
                    "see the logs of the missing ranks; they usually show the reason");
  abort_world(control, culprit, error);
  require_whole_world();  // another rank may have been first
  throw Error(error);
}

}  // namespace tessera::comm
