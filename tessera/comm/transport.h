// SPDX-License-Identifier: Apache-2.0
// Interface of collectives between ranks. Only the consumer moves data (a pull protocol): posting
// never blocks, and no order of waits can deadlock. A rank that has posted needs no processor for
// its peers to finish, except for large sums between hosts: these go on while every rank waits for
// something or makes progress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"

namespace tessera::comm {

/// Memory that peers can read directly. It is freed by its last owner. Allocation is not
/// collective: the ranks may allocate in any order.
class Region {
 public:
  virtual ~Region() = default;
  [[nodiscard]] virtual void* data() const = 0;
  [[nodiscard]] virtual std::size_t bytes() const = 0;
  /// The device of the memory.
  [[nodiscard]] virtual Device device() const { return {}; }
};
using RegionPtr = std::shared_ptr<Region>;

/// `count` elements at `data`. Whether they are in a region is looked up by address.
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

/// The ranks that communicate, in order; created by World from the mesh. `index` is the position of
/// this rank.
struct Group {
  std::vector<int> ranks;
  int index = 0;
  int id = 0;  ///< the same on all members
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};

enum class Op : std::uint8_t { Sum, Max, Min, BitOr };
std::string_view name(Op op) noexcept;
/// Treatment of the output of a reduction. Store: out = in_0 + in_1 + ... Accumulate: out = ((out +
/// in_0) + in_1) + ... Both reduce in rank order, one element at a time.
enum class Write : std::uint8_t { Store, Accumulate };

/// The call site of a collective, shown when ranks disagree or stall. Create it with
/// TESSERA_HERE("reduce h.3").
struct CallSite {
  const char* file = "";
  int line = 0;
  std::string what = {};
};
#define TESSERA_HERE(what) (::tessera::comm::CallSite{__FILE__, __LINE__, (what)})

/// A posted operation. Destroying it before wait() is a bug, because its buffers may be in use.
/// Threads: that of the rank.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns whether wait() would return at once. Moves data that is ready; never blocks.
  virtual bool done() = 0;
  /// Waits until the output of this rank is complete. Throws the error of the world if it was
  /// aborted.
  virtual void wait() = 0;
  /// Waits until no peer will read the input of this rank any more; it may then be overwritten.
  virtual void wait_reusable() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

/// Number of messages of one (peer, channel) that may be unreceived; the next send waits.
inline constexpr int kMostMessages = 64;
inline constexpr double kStallLimit = 300;  ///< seconds

/// The amount of data that a rank contributed to collectives and messages between two or more
/// ranks: the elements of its input of a reduce-scatter, of its output of an all-gather, twice the
/// data of an all-reduce.
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

/// The collectives of one rank. Every member of a group must post the same operations on it in the
/// same order; a mismatch (sequence number, op, dtype, count) is Error{Comm} naming both ranks and
/// call sites. Every wait throws after abort(). Inputs that peers read should be in a region
/// (allocate()); others are copied into one first. Threads: each rank uses its own Transport from
/// one thread.
class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// The device whose memory allocate() returns and whose spans the collectives take.
  [[nodiscard]] virtual Device device() const { return {}; }
  /// Returns zeroed memory, aligned to 4096. Throws Error{Memory} with the numbers if there is not
  /// enough.
  virtual RegionPtr allocate(std::size_t bytes, memory::Tag tag) = 0;

  /// in: count elements on every rank, count divisible by the size of the group; out: count / size,
  /// the part of this rank.
  virtual WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) = 0;
  /// in: the part of this rank (may be at its place in `out`); out: all parts in group order.
  virtual WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) = 0;
  /// In place; the reduction is in rank order, so every rank gets the same bits.
  virtual WorkPtr all_reduce(const Group& group, Span data, Op op, CallSite site) = 0;
  virtual WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) = 0;
  /// Part j of `in` goes to member j; `out` receives part i from member i. All parts are equal in
  /// size.
  virtual WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) = 0;
  /// The same for parts of different sizes: part (i, j), from member i to member j, has
  /// counts[i * size + j] elements, and may be empty. `counts` is the same on all members, which
  /// have to exchange their sizes before, and is copied. in: this rank's parts in order of j; out:
  /// those for it in order of i; they must not overlap.
  virtual WorkPtr all_to_all_v(const Group& group,
                               Span in,
                               Span out,
                               std::span<const std::int64_t> counts,
                               CallSite site) = 0;
  virtual WorkPtr barrier(const Group& group, CallSite site) = 0;
  /// Between two ranks of the world; messages of one (peer, channel) arrive in order.
  virtual WorkPtr send(int peer, int channel, Span data, CallSite site) = 0;
  virtual WorkPtr recv(int peer, int channel, Span data, CallSite site) = 0;

  /// Moves the data that is ready for this rank; called between blocks.
  virtual void progress() noexcept = 0;
  /// Breaks the world: from now on every wait of every rank throws this error.
  virtual void abort(const Error& error) noexcept = 0;
  /// Returns the seconds that this rank spent in waits and copies since the last call.
  virtual double take_comm_seconds() noexcept = 0;
  /// Returns the traffic since the world was created.
  [[nodiscard]] virtual Traffic traffic() const noexcept = 0;
  /// Returns the part of the traffic that was due to collectives of the group.
  [[nodiscard]] virtual Traffic traffic(const Group& group) const = 0;
  /// Returns the part of the traffic that was due to messages.
  [[nodiscard]] virtual Traffic messages() const noexcept = 0;
  /// Sets the time after which a wait for ranks that show no progress (no new operation or step, no
  /// World::show_life()) throws Error{Comm} naming them and breaks the world. Time in which the
  /// waiting process itself was stopped does not count. Default: kStallLimit.
  virtual void set_stall_limit(double seconds) noexcept = 0;
};

}  // namespace tessera::comm
