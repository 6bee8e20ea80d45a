// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/doorbell.h"
#include "tessera/comm/watchdog.h"
#include "tessera/launch/launch.h"

namespace tessera::comm {
namespace {

constexpr int kNoLimit = 0;

// FNV-1a hash.
std::uint64_t hash_of(const std::vector<int>& ranks) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const int rank : ranks)
    hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3U;
  return hash;
}

}  // namespace

std::string_view name(Kind kind) noexcept {
  static constexpr std::array<std::string_view, 8> kNames = {"all_reduce",
                                                             "reduce_scatter",
                                                             "all_gather",
                                                             "broadcast",
                                                             "all_to_all",
                                                             "all_to_all_v",
                                                             "barrier",
                                                             "message"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string describe(const Signature& signature) {
  std::string text(name(signature.kind));
  if (signature.kind == Kind::Barrier) return text;
  if (signature.kind == Kind::AllReduce || signature.kind == Kind::ReduceScatter)
    text += fmt::format(" {}", name(signature.op));
  if (signature.kind == Kind::Broadcast) text += fmt::format(" from member {}", signature.root);
  text += fmt::format(" of {} {}", signature.count, name(signature.dtype));
  if (signature.kind == Kind::AllToAllV)
    text +=
        fmt::format(" (sizes of the parts: {:08x})", static_cast<std::uint32_t>(signature.root));
  return text;
}

ChannelContext::ChannelContext(int own_rank,
                               Arenas all,
                               ControlPage& page,
                               std::pair<int, int> local)
    : rank(own_rank), control(page), arenas(std::move(all)), local_(local) {
  if (local_.second == 0) local_ = {0, arenas.ranks()};
  arena = std::make_shared<Arena>(arenas.share(rank), sizeof(ArenaHeader));
  publish_cores();
}

void ChannelContext::fail(const Error& error) {
  abort_world(control, rank, error);
  throw_if_aborted(control);  // another rank may have been first
  throw Error(error);
}

void ChannelContext::publish_cores() {
  ArenaHeader& mine = header(rank);
  cpu_set_t set;
  CPU_ZERO(&set);
  int allowed = 0;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) allowed = CPU_COUNT(&set);
  std::array<std::uint64_t, 16> words{};
  static_assert(sizeof(words) == sizeof(set));
  std::memcpy(words.data(), &set, sizeof(words));
  for (std::size_t i = 0; i < words.size(); ++i)
    mine.cores[i].store(words[i], std::memory_order_relaxed);
  const int usable = launch::usable_cores();
  mine.quota.store(static_cast<std::uint32_t>(usable < allowed ? usable : kNoLimit),
                   std::memory_order_relaxed);
  mine.ready.store(1, std::memory_order_release);
}

bool ChannelContext::any_here(const std::vector<int>& ranks) const {
  return ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [this](int one) {
           return one >= local_.first && one < local_.first + local_.second;
         });
}

bool ChannelContext::one_core_each() {
  if (cores_ != Cores::Unknown) return cores_ == Cores::Enough;
  std::array<std::uint64_t, 16> words{};
  const auto [first, ranks] = local_;
  int quota = ranks;
  for (int peer = first; peer < first + ranks; ++peer) {
    const ArenaHeader& theirs = header(peer);
    if (theirs.ready.load(std::memory_order_acquire) == 0) return false;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] |= theirs.cores[i].load(std::memory_order_relaxed);
    const int limit = static_cast<int>(theirs.quota.load(std::memory_order_relaxed));
    if (limit != kNoLimit) quota = std::min(quota, limit);
  }
  int cores = 0;
  for (const std::uint64_t word : words)
    cores += std::popcount(word);
  cores_ = std::min(cores, quota) >= ranks ? Cores::Enough : Cores::Few;
  return cores_ == Cores::Enough;
}

Channel::Channel(ChannelContext& context, std::vector<int> ranks, int index, std::uint64_t key)
    : context_(context),
      ranks_(std::move(ranks)),
      rank_list_(short_list(ranks_)),
      index_(index),
      key_(key),
      members_(hash_of(ranks_)),
      rings_(ranks_.size()) {
  TESSERA_REQUIRE(ranks_.size() <= kMaxMembers,
                  Unsupported,
                  fmt::format("a group of {} ranks on one host", ranks_.size()),
                  fmt::format("use at most {} ranks on a host", kMaxMembers));
}

Slot& Channel::own(std::uint64_t sequence) {
  Ring*& ring = rings_[static_cast<std::size_t>(index_)];
  if (ring == nullptr) ring = make_ring();
  return ring->at(sequence);
}

Ring* Channel::make_ring() {
  own_memory_ = context_.arena->allocate(sizeof(Ring), memory::Tag::Communication);
  ArenaHeader& header = context_.header(context_.rank);
  const std::uint32_t entry = header.entries.load(std::memory_order_relaxed);
  TESSERA_REQUIRE(entry < ArenaHeader::kEntries,
                  Unsupported,
                  fmt::format("rank {} has {} groups and channels", context_.rank, entry),
                  "send over fewer channels");
  header.directory[entry] = {key_, context_.arena->offset_of(own_memory_->data())};
  header.entries.store(entry + 1);
  return static_cast<Ring*>(own_memory_->data());
}

Ring* Channel::find_ring(int member) {
  const int peer = rank_of(member);
  const ArenaHeader& header = context_.header(peer);
  const std::uint32_t entries = header.entries.load();
  for (std::uint32_t i = 0; i < entries; ++i) {
    if (header.directory[i].key == key_)
      return reinterpret_cast<Ring*>(context_.address(peer, header.directory[i].offset));
  }
  return nullptr;
}

void Channel::publish(Slot& slot,
                      std::uint64_t sequence,
                      const Signature& signature,
                      const std::string& site) {
  slot.signature = signature;
  const std::size_t length = std::min(site.size(), slot.site.size() - 1);
  std::memcpy(slot.site.data(), site.data(), length);
  slot.site[length] = '\0';
  for (auto& word : slot.acks)
    word.store(0, std::memory_order_relaxed);
  slot.taken.store(0, std::memory_order_relaxed);
  slot.finished.store(0, std::memory_order_relaxed);
  slot.published.store(sequence + 1);
  ring_others();
}

Slot* Channel::posted(int member,
                      std::uint64_t sequence,
                      const Signature& expected,
                      const std::string& site) {
  Ring*& ring = rings_[static_cast<std::size_t>(member)];
  if (ring == nullptr) ring = find_ring(member);
  if (ring == nullptr) return nullptr;
  Slot& slot = ring->at(sequence);
  const std::uint64_t published = slot.published.load();
  if (published < sequence + 1) return nullptr;
  if (published == sequence + 1 && slot.signature == expected) return &slot;
  const std::string mine = fmt::format("{} ({})", describe(expected), site);
  const std::string theirs =
      published == sequence + 1
          ? fmt::format("posted {} ({})", describe(slot.signature), slot.site.data())
          : "went on without it: " + describe(context_.control, rank_of(member));
  mismatch(member, sequence, mine, theirs);
}

void Channel::mismatch(int member,
                       std::uint64_t sequence,
                       const std::string& mine,
                       const std::string& theirs) {
  std::vector<std::string> ranks;
  for (const int rank : ranks_)
    ranks.push_back(std::to_string(rank));
  context_.fail(
      Error(Error::Kind::Comm,
            fmt::format("ranks disagree about operation {} of ranks {}: rank {} posted {}, "
                        "rank {} {}",
                        sequence,
                        text::join_some(ranks, ","),
                        context_.rank,
                        mine,
                        rank_of(member),
                        theirs),
            "make the same calls with the same sizes in the same order on every rank"));
}

void Channel::acknowledge(int member, Slot& slot) {
  slot.ack(static_cast<std::size_t>(index_));
  if (member != index_) ring_if_waiting(context_.control, rank_of(member));
}

void Channel::ring_others() {
  for (const int rank : ranks_)
    if (rank != context_.rank) ring_if_waiting(context_.control, rank);
}

}  // namespace tessera::comm
