// SPDX-License-Identifier: Apache-2.0
// Data structures that ranks write for each other in their arenas. They consist of plain bytes and
// atomics that are zero initially, so that a peer that looks before the owner has arrived sees
// "nothing yet".
//
//   arena of a rank = ArenaHeader | regions ...         a ring is a region that the header's
//   directory names
//
// A ring belongs to (group, rank) or to a channel of messages. Its owner publishes operation s in
// slot s % kSlots; every member that reads it sets its bit in `acks` when it is done with the slot
// and with the memory that the slot names. The owner reuses a slot when all readers of its last
// operation are done.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tessera/base/control_page.h"
#include "tessera/base/dtype.h"
#include "tessera/comm/flight.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

inline constexpr std::size_t kSlots = kMostMessages;  ///< operations in progress on one group
inline constexpr std::size_t kMailboxBytes =
    4096;  ///< inputs up to this size are copied into the slot
inline constexpr std::size_t kMaxMembers = kMostRanks;  ///< of a group: bits of Slot::acks

enum class Kind : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  AllToAll,
  AllToAllV,
  Barrier,
  Message
};
std::string_view name(Kind kind) noexcept;

/// The properties of an operation that must be equal on all members of its group.
struct Signature {
  Kind kind = Kind::Barrier;
  Op op = Op::Sum;
  DType dtype = DType::U8;
  std::int32_t root = 0;      ///< AllToAllV: a hash of the sizes of all parts
  std::uint64_t count = 0;    ///< AllToAllV: the elements of all parts of all members
  std::uint64_t members = 0;  ///< hash of the ranks of the group
  bool operator==(const Signature&) const = default;
};

struct Slot {
  /// 1 + sequence number; stored last, after everything below has been written.
  alignas(64) std::atomic<std::uint64_t> published;
  Signature signature;
  std::uint64_t offset;   ///< offset of the input in the owner's arena
  std::uint32_t readers;  ///< number of bits of `acks` that will be set
  alignas(64) std::array<std::atomic<std::uint64_t>, kMaxMembers / 64> acks;
  /// In-place all-reduce: chunks that have been taken, and chunks that are finished. Only those of
  /// member 0 are used.
  alignas(64) std::atomic<std::uint64_t> taken;
  std::atomic<std::uint64_t> finished;
  alignas(64) std::array<char, 128> site;  ///< the call site, NUL-terminated
  alignas(64) std::array<std::byte, kMailboxBytes> mailbox;

  void ack(std::size_t member) noexcept {
    acks[member / 64].fetch_or(std::uint64_t{1} << (member % 64));
  }
  [[nodiscard]] bool acked_by(std::size_t member) const noexcept {
    return ((acks[member / 64].load() >> (member % 64)) & 1U) != 0;
  }
  /// For the owner: returns whether all readers are done.
  [[nodiscard]] bool free() const noexcept {
    std::uint32_t done = 0;
    for (const auto& word : acks)
      done += static_cast<std::uint32_t>(std::popcount(word.load()));
    return done >= readers;
  }
};

struct Ring {
  std::array<Slot, kSlots> slots;
  Slot& at(std::uint64_t sequence) noexcept { return slots[sequence % kSlots]; }
};

/// The first bytes of an arena.
struct ArenaHeader {
  static constexpr std::size_t kEntries = 4096;
  struct Entry {
    std::uint64_t key;
    std::uint64_t offset;
  };
  std::atomic<std::uint32_t> ready;  ///< the owner has filled the two fields below
  std::atomic<std::uint32_t> quota;  ///< processors that its cgroup grants; 0: no limit
  std::array<std::atomic<std::uint64_t>, 16> cores;  ///< processors that the owner may run on
  std::atomic<std::uint32_t> entries;                ///< number of complete entries of `directory`
  std::array<Entry, kEntries> directory;
  FlightRing flight;  ///< the last operations of the owner
};

/// Keys of the directory.
inline std::uint64_t group_key(int id) {
  return (std::uint64_t{1} << 62) | static_cast<std::uint32_t>(id);
}
inline std::uint64_t channel_key(int receiver, int channel) {
  return (std::uint64_t{2} << 62) | (static_cast<std::uint64_t>(receiver) << 32) |
         static_cast<std::uint32_t>(channel);
}

}  // namespace tessera::comm
