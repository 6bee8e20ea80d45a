// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/host_bridge.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/comm/doorbell.h"
#include "tessera/comm/watchdog.h"

namespace tessera::comm {
namespace {

constexpr std::uint32_t kPostMagic = 0x74736c6b;
constexpr const char* kNoOperation = "it sent something that is not a posted operation";
/// Time for the other hosts to end, after this rank has.
constexpr double kLeaveSeconds = 60.0;
/// A connection may break because a process was killed; its supervisor reports that within this
/// time.
constexpr double kCauseSeconds = 1.0;
constexpr std::chrono::microseconds kFullSlotWait{200};

/// Differs from the key of the channel's slots, so that a later slot may overtake the data.
std::uint64_t flow_key(const Channel& channel) {
  return (std::uint64_t{3} << 62) | channel.key();
}

}  // namespace

/// The form in which a slot is sent.
struct HostBridge::Posted {
  std::uint32_t magic = kPostMagic;
  std::uint32_t readers = 0;  ///< members on the receiving host; 0: the sender has ended
  Flow flow = Flow::Slot;     ///< of others, only the key, the number and the part count
  std::uint64_t key = 0, sequence = 0;
  Signature signature;
  std::uint64_t input_bytes = 0;       ///< size of the whole input
  std::uint64_t begin = 0, bytes = 0;  ///< part of the input that is sent
  std::array<char, sizeof(Slot::site)> site{};
  /// Returns whether the part follows in the same message, which costs less than one of its own.
  [[nodiscard]] bool joined() const { return bytes <= HostLink::kSmallBytes - sizeof(Posted); }
};

struct HostBridge::Outgoing {
  Posted head;
  const std::byte* data = nullptr;  ///< the part
  Slot* slot = nullptr;
  std::vector<int> members;    ///< members whose marks the slot gets once it is sent
  RegionPtr memory = nullptr;  ///< kept until the data is sent
};

struct HostBridge::Sender {
  int host = 0, peer = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Outgoing> queue;
  bool closing = false;  ///< end when the queue is empty
  std::thread thread;

  /// Returns the message to send next: the first one that is sent with its head and follows no
  /// other message of its channel, because a few numbers on which all ranks wait, such as the count
  /// of labels at the beginning of a step, should not wait for all weights that travel; without
  /// one, the first message. The queue must not be empty.
  std::list<Outgoing>::iterator next() {
    std::vector<std::uint64_t> passed;
    for (auto one = queue.begin(); one != queue.end() && one->head.readers != 0; ++one) {
      const std::uint64_t key = one->head.key;
      if (one->head.joined() && std::find(passed.begin(), passed.end(), key) == passed.end())
        return one;
      passed.push_back(key);
    }
    return queue.begin();
  }
};

/// The arena of a rank of another host, as this host keeps it. Threads: one.
class HostBridge::RemoteArena {
 public:
  RemoteArena(ChannelContext& context, int rank)
      : rank_(rank),
        mapping_(context.arenas.share(rank)),
        arena_(std::make_shared<Arena>(mapping_, sizeof(ArenaHeader))) {}

  Slot& slot(std::uint64_t key, std::uint64_t sequence) {
    Ring*& ring = rings_[key];
    if (ring == nullptr) ring = make_ring(key);
    return ring->at(sequence);
  }
  /// Returns memory for the input of a slot, which is reused when the slot's readers are done.
  std::byte* room(Slot& slot, std::uint64_t sequence, std::size_t bytes) {
    std::erase_if(buffers_, [](const Buffer& buffer) {
      return buffer.idle() && ++buffer.unused > kKeptUnused;
    });
    for (Buffer& buffer : buffers_) {
      if (!buffer.idle() || buffer.region->bytes() < bytes || buffer.region->bytes() / 2 > bytes)
        continue;
      buffer.slot = &slot;
      buffer.sequence = sequence;
      buffer.unused = 0;
      return static_cast<std::byte*>(buffer.region->data());
    }
    buffers_.push_back({arena_->allocate(bytes, memory::Tag::Communication), &slot, sequence});
    return static_cast<std::byte*>(buffers_.back().region->data());
  }
  [[nodiscard]] std::size_t offset_of(const void* data) const { return arena_->offset_of(data); }
  [[nodiscard]] std::size_t bytes() const { return mapping_->bytes(); }
  /// Readers may be late: the memory that they read is kept.
  void close() { arena_->close(); }

 private:
  static constexpr int kKeptUnused = 64;  // messages after which an unused buffer is freed
  struct Buffer {
    RegionPtr region;
    Slot* slot = nullptr;
    std::uint64_t sequence = 0;
    mutable int unused = 0;
    [[nodiscard]] bool idle() const {
      return slot->published.load() != sequence + 1 || slot->free();
    }
  };

  Ring* make_ring(std::uint64_t key) {
    rings_memory_.push_back(arena_->allocate(sizeof(Ring), memory::Tag::Communication));
    void* const memory = rings_memory_.back()->data();
    auto& header = *reinterpret_cast<ArenaHeader*>(mapping_->base());
    const std::uint32_t entry = header.entries.load(std::memory_order_relaxed);
    TESSERA_REQUIRE(entry < ArenaHeader::kEntries,
                    Unsupported,
                    fmt::format("rank {} has {} groups and channels", rank_, entry),
                    "send over fewer channels");
    header.directory[entry] = {key, arena_->offset_of(memory)};
    header.entries.store(entry + 1);
    return static_cast<Ring*>(memory);
  }

  int rank_;
  std::shared_ptr<Mapping> mapping_;
  std::shared_ptr<Arena> arena_;
  std::map<std::uint64_t, Ring*> rings_;
  std::vector<RegionPtr> rings_memory_;
  std::vector<Buffer> buffers_;
};

HostBridge::HostBridge(ChannelContext& context, HostLayout layout, std::unique_ptr<HostLink> link)
    : context_(context),
      layout_(std::move(layout)),
      host_(layout_.host_of(context.rank)),
      link_(std::move(link)),
      ledger_(memory::current_ledger()),
      exceptions_(std::uncaught_exceptions()) {
  for (int host = 0; host < layout_.hosts(); ++host) {
    if (host == host_) continue;
    senders_.push_back(std::make_unique<Sender>());
    Sender& sender = *senders_.back();
    sender.host = host;
    sender.peer = layout_.receiver(context_.rank, host);
    sender.thread = quiet_thread([this, &sender] { run_sender(sender); });
    for (int rank = layout_.begin(host); rank < layout_.begin(host + 1); ++rank) {
      if (layout_.receiver(rank, host_) != context_.rank) continue;
      ++receiving_;
      // Mapped in this process: receivers only read the list of mappings.
      context_.arenas.share(rank);
      receivers_.push_back(quiet_thread([this, rank] { run_receiver(rank); }));
    }
  }
}

HostBridge::~HostBridge() {
  const bool orderly = std::uncaught_exceptions() <= exceptions_;
  if (!orderly) {
    closing_ = true;
    link_->close();
  }
  for (const auto& sender : senders_) {
    const std::lock_guard lock(sender->mutex);
    if (orderly) sender->queue.push_back({Posted{}});
    sender->closing = true;
    sender->changed.notify_one();
  }
  if (orderly) wait_for_receivers();
  closing_ = true;
  link_->close();
  for (const auto& sender : senders_)
    sender->thread.join();
  for (std::thread& receiver : receivers_)
    receiver.join();
}

void HostBridge::wait_for_receivers() {
  const auto unsent = [this] {
    return std::any_of(senders_.begin(), senders_.end(), [](const auto& sender) {
      const std::lock_guard lock(sender->mutex);
      return !sender->queue.empty();
    });
  };
  const double until = now_s() + kLeaveSeconds;
  while ((receiving_ > 0 || unsent()) && !context_.aborted() && now_s() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool HostBridge::crosses(const std::vector<int>& ranks) const {
  return std::any_of(
      ranks.begin(), ranks.end(), [this](int rank) { return layout_.host_of(rank) != host_; });
}

const std::vector<HostBridge::Route>& HostBridge::routes_of(const Channel& channel) {
  const auto [found, added] = routes_.try_emplace(channel.key());
  if (!added) return found->second;
  for (int member = 0; member < channel.size(); ++member) {
    const int host = layout_.host_of(channel.rank_of(member));
    if (host == host_) continue;
    std::vector<Route>& routes = found->second;
    auto route = std::find_if(
        routes.begin(), routes.end(), [&](const Route& one) { return one.host == host; });
    if (route == routes.end()) route = routes.insert(route, {host, {}});
    route->members.push_back(member);
  }
  return found->second;
}

void HostBridge::post(const Channel& channel,
                      std::uint64_t sequence,
                      const Signature& signature,
                      const std::string& site,
                      Slot& slot,
                      const std::byte* data,
                      std::size_t bytes,
                      std::span<const std::size_t> parts) {
  if (slot.readers == 0) return;
  const bool equal = signature.kind == Kind::ReduceScatter || signature.kind == Kind::AllToAll;
  const std::size_t part = bytes / static_cast<std::size_t>(channel.size());
  const auto place_of = [&](int member) {
    const auto i = static_cast<std::size_t>(member);
    return equal ? part * i : parts[i];
  };
  for (const Route& route : routes_of(channel)) {
    Outgoing out;
    out.head.readers = static_cast<std::uint32_t>(route.members.size());
    out.head.key = channel.key();
    out.head.sequence = sequence;
    out.head.signature = signature;
    out.head.input_bytes = out.head.bytes = bytes;
    if (equal || !parts.empty()) {
      // Members of one host are contiguous in a group, unless its order is not that of the ranks.
      out.head.begin = place_of(route.members.front());
      out.head.bytes = place_of(route.members.back() + 1) - out.head.begin;
    }
    if (data == nullptr) out.head.begin = out.head.bytes = 0;
    const std::size_t length = std::min(site.size(), out.head.site.size() - 1);
    std::memcpy(out.head.site.data(), site.data(), length);
    if (data != nullptr) out.data = data + out.head.begin;
    out.slot = &slot;
    out.members = route.members;
    queue(route.host, std::move(out));
  }
}

void HostBridge::queue(int host, Outgoing&& out) {
  const auto sender = std::find_if(
      senders_.begin(), senders_.end(), [&](const auto& one) { return one->host == host; });
  const std::lock_guard lock((*sender)->mutex);
  (*sender)->queue.push_back(std::move(out));
  (*sender)->changed.notify_one();
}

std::shared_ptr<const Inbox> HostBridge::expect(int sender,
                                                Flow flow,
                                                const Channel& channel,
                                                std::uint64_t sequence,
                                                RegionPtr memory,
                                                std::size_t bytes) {
  TESSERA_ASSERT(layout_.receiver(sender, host_) == context_.rank);
  auto inbox = std::make_shared<Inbox>();
  inbox->memory = std::move(memory);
  inbox->bytes = bytes;
  const std::lock_guard lock(inboxes_mutex_);
  inboxes_[{sender, flow, flow_key(channel), sequence}] = inbox;
  return inbox;
}

void HostBridge::send(int receiver,
                      Flow flow,
                      const Channel& channel,
                      std::uint64_t sequence,
                      RegionPtr memory,
                      const std::byte* data,
                      std::size_t begin,
                      std::size_t bytes) {
  TESSERA_ASSERT(layout_.receiver(context_.rank, layout_.host_of(receiver)) == receiver);
  Outgoing out;
  out.head.readers = 1;
  out.head.flow = flow;
  out.head.key = flow_key(channel);
  out.head.sequence = sequence;
  out.head.begin = begin;
  out.head.bytes = bytes;
  out.data = data;
  out.memory = std::move(memory);
  queue(layout_.host_of(receiver), std::move(out));
}

// A count of owners does not order what its last other owner did with the memory; a mutex does.
void HostBridge::see_released_memory() {
  for (const auto& sender : senders_)
    const std::lock_guard lock(sender->mutex);
}

const HostColumn* HostBridge::column(const Group& group) {
  const auto [found, added] = columns_.try_emplace(group.id);
  if (added) found->second = column_of(group, layout_);
  return found->second ? &*found->second : nullptr;
}

void HostBridge::run_sender(Sender& sender) {
  try {
    std::vector<std::byte> message;  // the head, and the part if it is joined
    for (;;) {
      std::list<Outgoing>::iterator out;
      {
        std::unique_lock lock(sender.mutex);
        sender.changed.wait(lock, [&] { return !sender.queue.empty() || sender.closing; });
        if (sender.queue.empty() || closing_) return;
        out = sender.next();  // stays valid while others are appended
      }
      const auto head = std::as_bytes(std::span(&out->head, 1));
      const HostLink::Bytes part(out->data, out->head.bytes);
      message.assign(head.begin(), head.end());
      if (out->head.joined()) message.insert(message.end(), part.begin(), part.end());
      const std::array<HostLink::Bytes, 2> messages = {message, part};
      link_->send(sender.peer, std::span(messages).first(out->head.joined() ? 1 : 2));
      bytes_sent_ += head.size() + part.size();
      for (const int member : out->members)
        out->slot->ack(static_cast<std::size_t>(member));
      if (out->slot != nullptr) ring_if_waiting(context_.control, context_.rank);
      const std::lock_guard lock(sender.mutex);
      sender.queue.erase(out);
    }
  } catch (const std::exception& error) {
    fail(sender.peer, error.what());
  }
}

void HostBridge::run_receiver(int peer) {
  const memory::ScopedLedger scoped(ledger_);
  try {
    RemoteArena arena(context_, peer);
    receive_all(peer, arena);
    arena.close();
  } catch (const std::exception& error) {
    fail(peer, error.what());
  }
  --receiving_;
}

void HostBridge::receive_all(int peer, RemoteArena& arena) {
  LinkSpeed speed;
  std::vector<std::byte> message(HostLink::kSmallBytes);
  for (;;) {
    Posted head;
    link_->receive(peer, message);
    std::memcpy(&head, message.data(), sizeof(head));
    TESSERA_REQUIRE(head.magic == kPostMagic, Comm, kNoOperation, "");
    const auto receive_part = [&](std::byte* place) {
      if (head.joined()) {
        std::copy_n(message.data() + sizeof(head), head.bytes, place);
      } else {
        receive_data(peer, {place, head.bytes}, speed);
      }
    };
    if (head.flow != Flow::Slot) {
      receive_into_inbox(peer, head, receive_part);
      continue;
    }
    TESSERA_REQUIRE(head.begin <= head.input_bytes && head.bytes <= head.input_bytes - head.begin &&
                        head.input_bytes < arena.bytes(),
                    Comm,
                    kNoOperation,
                    "");
    if (head.readers == 0) return;
    Slot& slot = arena.slot(head.key, head.sequence);
    while (!slot.free()) {
      if (closing_ || context_.aborted()) return;
      std::this_thread::sleep_for(kFullSlotWait);
    }
    std::byte* place = slot.mailbox.data();
    if (head.bytes > kMailboxBytes) place = arena.room(slot, head.sequence, head.bytes);
    receive_part(place);
    slot.signature = head.signature;
    slot.site = head.site;
    slot.site.back() = '\0';
    // Readers add their offset into the whole input, of which only a part is here.
    slot.offset = arena.offset_of(place) - head.begin;
    slot.readers = head.readers;
    for (auto& word : slot.acks)
      word.store(0, std::memory_order_relaxed);
    slot.published.store(head.sequence + 1);
    for (int rank = layout_.begin(host_); rank < layout_.begin(host_ + 1); ++rank)
      ring_if_waiting(context_.control, rank);
  }
}

/// Receives data of a flow, for which this rank has memory since before it posted the operation.
void HostBridge::receive_into_inbox(int peer,
                                    const Posted& head,
                                    const std::function<void(std::byte*)>& receive_part) {
  std::shared_ptr<Inbox> inbox;
  {
    const std::lock_guard lock(inboxes_mutex_);
    const auto found = inboxes_.find({peer, head.flow, head.key, head.sequence});
    if (found != inboxes_.end()) inbox = found->second;
    TESSERA_REQUIRE(inbox != nullptr && head.begin == inbox->arrived.load() &&
                        head.bytes <= inbox->bytes - head.begin,
                    Comm,
                    kNoOperation,
                    "");
    if (head.begin + head.bytes == inbox->bytes) inboxes_.erase(found);
  }
  receive_part(static_cast<std::byte*>(inbox->memory->data()) + head.begin);
  inbox->arrived.store(head.begin + head.bytes);
  ring_if_waiting(context_.control, context_.rank);
}

void HostBridge::receive_data(int peer, std::span<std::byte> place, LinkSpeed& speed) {
  const double from = now_s();
  link_->receive(peer, place);
  const double now = now_s();
  if (const auto slow = speed.add(place.size(), now - from, now)) {
    log::warn(
        fmt::format("slow link: what rank {} of host {} sends to rank {} of host {} arrives with "
                    "{}",
                    peer,
                    layout_.host_of(peer),
                    context_.rank,
                    host_,
                    *slow));
  }
}

/// Breaks the world because of the connection to a peer, unless its supervisor reports the cause.
void HostBridge::fail(int peer, const std::string& why) {
  const double until = now_s() + kCauseSeconds;
  while (!closing_ && !context_.aborted() && now_s() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (closing_ || context_.aborted()) return;
  abort_world(
      context_.control,
      peer,
      Error(
          Error::Kind::Comm,
          fmt::format("rank {} of host {} cannot be reached: {}", peer, layout_.host_of(peer), why),
          "see the messages of that host, and whether the network between the hosts works"));
}

}  // namespace tessera::comm
