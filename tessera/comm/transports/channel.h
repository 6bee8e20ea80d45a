// SPDX-License-Identifier: Apache-2.0
// A sequence of operations that ranks have in common: those of a group, or the messages from one
// rank to another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/control_page.h"
#include "tessera/comm/transports/arena.h"
#include "tessera/comm/transports/ring.h"

namespace tessera::comm {

/// State that all channels and operations of a rank share. It outlives the transport while
/// operations live.
struct ChannelContext {
  /// `local`: the first rank of this host and the number of its ranks; all ranks if it is {0, 0}.
  ChannelContext(int own_rank, Arenas all, ControlPage& page, std::pair<int, int> local = {0, 0});

  ArenaHeader& header(int peer) { return *reinterpret_cast<ArenaHeader*>(arenas.of(peer).base()); }
  std::byte* address(int peer, std::uint64_t offset) { return arenas.of(peer).base() + offset; }
  [[nodiscard]] bool aborted() const { return control.aborted.load() != 0; }
  /// Breaks the world with `error` and throws it.
  [[noreturn]] void fail(const Error& error);
  /// Returns the first rank of this host and the number of its ranks.
  [[nodiscard]] std::pair<int, int> local() const { return local_; }
  /// Returns whether one of the ranks is on this host; true without ranks.
  [[nodiscard]] bool any_here(const std::vector<int>& ranks) const;
  /// Returns whether every rank of this host may have its own processor; false while a rank has not
  /// arrived.
  bool one_core_each();

  int rank;
  ControlPage& control;
  Arenas arenas;
  std::shared_ptr<Arena> arena;  ///< this rank's own
  bool closed = false;           ///< the transport was destroyed

 private:
  void publish_cores();
  std::pair<int, int> local_;
  enum class Cores { Unknown, Enough, Few } cores_ = Cores::Unknown;
};

/// One channel of a rank. Threads: that of the rank.
class Channel {
 public:
  /// `key` names the rings of this channel in the directories of its members.
  Channel(ChannelContext& context, std::vector<int> ranks, int index, std::uint64_t key);

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int rank_of(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] std::uint64_t members_hash() const { return members_; }
  [[nodiscard]] std::uint64_t key() const { return key_; }
  /// Returns the ranks in short form, "0-3".
  [[nodiscard]] const std::string& rank_list() const { return rank_list_; }

  std::uint64_t next_sequence() { return next_++; }
  /// Returns this rank's slot of an operation; its ring is created on first use.
  Slot& own(std::uint64_t sequence);
  /// Publishes the slot, whose input and mailbox are filled, to the other members.
  void publish(Slot& slot,
               std::uint64_t sequence,
               const Signature& signature,
               const std::string& site);
  /// Returns the slot of a member once it has posted `sequence`; null before. Breaks the world with
  /// Error{Comm} if the member posted another operation than `expected`.
  Slot* posted(int member,
               std::uint64_t sequence,
               const Signature& expected,
               const std::string& site);
  /// Marks a member's slot, which may be this rank's own, as read by this rank.
  void acknowledge(int member, Slot& slot);
  /// Wakes the other members that wait.
  void ring_others();

 private:
  Ring* find_ring(int member);
  Ring* make_ring();
  [[noreturn]] void mismatch(int member,
                             std::uint64_t sequence,
                             const std::string& mine,
                             const std::string& theirs);

  ChannelContext& context_;
  std::vector<int> ranks_;
  std::string rank_list_;
  int index_;
  std::uint64_t key_;
  std::uint64_t members_;
  std::uint64_t next_ = 0;
  RegionPtr own_memory_;
  std::vector<Ring*> rings_;
};

/// Returns "all_reduce sum of 1024 F32".
std::string describe(const Signature& signature);

}  // namespace tessera::comm
