// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks. Only the consumer moves data (a pull protocol): posting never blocks,
// so a posted rank needs no processor for its peers to finish and no order of waits can deadlock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {

/// Memory that peers can read directly. Freed by its last owner. Regions must be allocated by all
/// ranks of a world in any order; nothing is collective about it.
class Region {
 public:
  virtual ~Region() = default;
  [[nodiscard]] virtual void* data() const = 0;
  [[nodiscard]] virtual std::size_t bytes() const = 0;
};
using RegionPtr = std::shared_ptr<Region>;

/// `count` elements at `data`. Whether it lies in a region is looked up by address.
struct Span {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::F32;
  Device device = {};
  [[nodiscard]] std::size_t bytes() const { return count * size_of(dtype); }
  [[nodiscard]] Span part(std::size_t begin, std::size_t n) const {
    return {static_cast<std::byte*>(data) + begin * size_of(dtype), n, dtype, device};
  }
};

/// Ranks that communicate, in order; made by World from the mesh. `index` is this rank's position.
struct Group {
  std::vector<int> ranks;
  int index = 0;
  int id = 0;  ///< the same on all members
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};

enum class Op : std::uint8_t { Sum, Max, Min, BitOr };
std::string_view name(Op op) noexcept;
/// Store: out = in_0 + in_1 + ...  Accumulate: out = ((out + in_0) + in_1) + ...  Both in rank
/// order, one element at a time.
enum class Fold : std::uint8_t { Store, Accumulate };

/// Where a collective was called: told when ranks disagree or stall. Make it with
/// TESSERA_HERE("reduce h.3").
struct CallSite {
  const char* file = "";
  int line = 0;
  std::string what = {};
};
#define TESSERA_HERE(what) (::tessera::comm::CallSite{__FILE__, __LINE__, (what)})

/// A posted operation. Destroying it before wait() is a bug (its buffers may be in use).
/// Threads: the rank's own.
class Work {
 public:
  virtual ~Work() = default;
  /// Whether wait() would return at once; moves what data is ready, never blocks.
  virtual bool done() = 0;
  /// Until this rank's output is complete. Throws the world's error if it was aborted.
  virtual void wait() = 0;
  /// Until no peer will read this rank's input any more: it may then be rewritten.
  virtual void wait_reusable() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

/// A send waits once so many messages of its (peer, channel) have not been received.
inline constexpr int kMostMessages = 64;
inline constexpr double kStallLimit = 300;  ///< seconds

/// What a rank put into collectives and messages between more than one rank: the elements of its
/// input of a reduce-scatter, of its output of an all-gather, twice the data of an all-reduce.
struct Traffic {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  std::int64_t calls = 0;  ///< collectives and messages sent

  bool operator==(const Traffic&) const = default;
  friend Traffic operator-(const Traffic& later, const Traffic& before) {
    return {
        later.elements - before.elements, later.bytes - before.bytes, later.calls - before.calls};
  }
};

/// Collectives of one rank. Every member of a group must post the same operations on it in the same
/// order; a mismatch (sequence number, op, dtype, count) is Error{Comm} naming both ranks and call
/// sites. Every wait throws after abort(). Inputs that peers read should lie in a region
/// (allocate()); others are copied into one first. Threads: each rank uses its own Transport from
/// one thread.
class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Zeroed memory, aligned to 4096. Error{Memory} with the numbers when it cannot be had.
  virtual RegionPtr allocate(std::size_t bytes, memory::Tag tag) = 0;

  /// in: count elements on every rank, count divisible by the group's size; out: count / size, this
  /// rank's part.
  virtual WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Fold fold, CallSite site) = 0;
  /// in: this rank's part (may lie in `out` at its place); out: all parts in group order.
  virtual WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) = 0;
  /// In place; the fold is in rank order, so every rank holds the same bits.
  virtual WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) = 0;
  virtual WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) = 0;
  /// Part j of in goes to member j; out receives part i of member i. Equal parts.
  virtual WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) = 0;
  virtual WorkPtr barrier(const Group& group, CallSite site) = 0;
  /// Between two ranks of the world; messages of one (peer, channel) arrive in order.
  virtual WorkPtr send(int peer, int channel, Span data, CallSite site) = 0;
  virtual WorkPtr recv(int peer, int channel, Span data, CallSite site) = 0;

  /// Moves whatever data is ready for this rank; called between blocks.
  virtual void progress() noexcept = 0;
  /// Breaks the world: every wait of every rank throws this error from now on.
  virtual void abort(const Error& error) noexcept = 0;
  /// Seconds this rank spent in waits and copies since the last call.
  virtual double take_comm_seconds() noexcept = 0;
  /// Since the world began.
  [[nodiscard]] virtual Traffic traffic() const noexcept = 0;
  /// The part of it that went through collectives of that group.
  [[nodiscard]] virtual Traffic traffic(const Group& group) const = 0;
  /// The part of it that was messages to one rank.
  [[nodiscard]] virtual Traffic messages() const noexcept = 0;
  /// A wait for ranks that show no sign of life (no new operation or step, no World::show_life())
  /// for this long is Error{Comm} naming them, and breaks the world. Time in which the waiting
  /// process was itself stopped does not count. Default kStallLimit.
  virtual void set_stall_limit(double seconds) noexcept = 0;
};

}  // namespace tessera::comm
