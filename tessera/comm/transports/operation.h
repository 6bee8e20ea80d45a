// SPDX-License-Identifier: Apache-2.0
// Operations in progress on one rank: what each still has to move, and how it moves it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/transport.h"
#include "tessera/comm/transports/channel.h"

namespace tessera::comm {

/// A posted operation of one rank. advance() moves what can be moved without waiting. The base
/// class is complete at once: it only offers its input (a send, the root of a broadcast).
///
/// States: posted -> complete (the output is ready) -> drained (all readers of the slot are done).
/// Threads: that of the rank.
class Operation {
 public:
  struct Start {
    Channel& channel;
    std::uint64_t sequence = 0;
    std::uint64_t number = 0;  ///< among all operations of this rank, from 1
    Signature signature;
    std::string site;
    Slot* slot = nullptr;  ///< slot of this rank; null for a receiver of messages
    bool borrows = false;  ///< peers read the caller's own memory
    bool local = false;    ///< other hosts learn of the post, and get no input
    /// AllToAllV: the places of the parts in the input, in bytes, and its size.
    std::vector<std::size_t> parts = {};
    std::vector<RegionPtr>
        alive;  ///< regions that are kept at least until the operation is drained
  };
  explicit Operation(Start start) : start_(std::move(start)) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  [[nodiscard]] Start& start() { return start_; }
  /// Returns whether anything was moved.
  virtual bool advance() { return false; }
  /// Fills in the ranks that must post or act before the operation can be complete.
  virtual void missing(std::vector<int>& ranks) { ranks.clear(); }

  [[nodiscard]] bool complete() const { return complete_; }
  /// Returns whether all readers are done, so that nothing of this operation is needed any more.
  [[nodiscard]] bool drained() const;
  /// Returns whether peers are done reading the caller's memory.
  [[nodiscard]] bool reusable() const { return complete_ && (!start_.borrows || drained()); }
  /// Fills in the ranks that are not done reading.
  void readers(std::vector<int>& ranks) const;
  /// The caller has given up: nothing more is moved; what peers read is kept.
  void cancel() { cancelled_ = true; }
  [[nodiscard]] bool cancelled() const { return cancelled_; }
  [[nodiscard]] const std::string& site() const { return start_.site; }
  [[nodiscard]] std::uint64_t number() const { return start_.number; }
  [[nodiscard]] Kind kind() const { return start_.signature.kind; }
  [[nodiscard]] int members() const { return start_.channel.size(); }
  /// Returns the size of the whole data: a member's result of an all-gather, or its input of other
  /// operations.
  [[nodiscard]] std::size_t bytes() const {
    const std::size_t mine = start_.signature.count * size_of(start_.signature.dtype);
    if (kind() == Kind::AllToAllV) return mine / static_cast<std::size_t>(members());
    return kind() == Kind::AllGather ? mine * static_cast<std::size_t>(members()) : mine;
  }

 protected:
  Slot* posted(int member) {
    return start_.channel.posted(member, start_.sequence, start_.signature, start_.site);
  }
  [[nodiscard]] Channel& channel() { return start_.channel; }
  [[nodiscard]] const Signature& signature() const { return start_.signature; }
  [[nodiscard]] std::uint64_t sequence() const { return start_.sequence; }
  /// Fills slots() once all members have posted.
  bool all_posted();
  [[nodiscard]] const std::vector<Slot*>& slots() const { return slots_; }
  void acknowledge_all();
  /// Peers are done with the caller's memory although not all have acknowledged.
  void release() { start_.borrows = false; }
  void missing_posts(std::vector<int>& ranks);

  bool complete_ = true;

 private:
  Start start_;
  bool cancelled_ = false;
  std::vector<Slot*> slots_;
};

/// Copies parts of the members' inputs as they arrive: all-gather, all-to-all, broadcast, receive.
class PullParts final : public Operation {
 public:
  struct Part {
    int member = 0;
    std::size_t offset = 0;  ///< bytes into the member's input
    void* out = nullptr;
    std::size_t bytes = 0;
  };
  PullParts(Start start, ChannelContext& context, std::vector<Part> parts);
  bool advance() override;
  void missing(std::vector<int>& ranks) override;

 private:
  ChannelContext& context_;
  std::vector<Part> parts_;  ///< parts that have not arrived yet
};

/// Reduces `out.count` elements of every member's input into `out` once all have posted:
/// reduce-scatter; small all-reduces, whose inputs are in the mailboxes; barriers.
class ReduceParts final : public Operation {
 public:
  /// `offset`: bytes into the members' inputs. `own`: the part of this member, if it is elsewhere.
  ReduceParts(Start start,
              ChannelContext& context,
              std::size_t offset,
              Span out,
              Write write,
              const void* own = nullptr);
  bool advance() override;
  void missing(std::vector<int>& ranks) override { missing_posts(ranks); }

 private:
  ChannelContext& context_;
  std::size_t offset_;
  Span out_;
  Write write_;
  const void* own_;
};

/// In-place all-reduce of large buffers: each rank that waits takes the next chunk, reduces it and
/// writes the sum to the buffers of all members.
class ReduceInPlace final : public Operation {
 public:
  /// `copy_to`: destination of the result if the caller's memory is not the one that is reduced.
  ReduceInPlace(Start start, ChannelContext& context, void* copy_to);
  bool advance() override;
  void missing(std::vector<int>& ranks) override;

 private:
  bool take_chunks();
  void reduce_chunk(std::uint64_t chunk);
  void finish();

  ChannelContext& context_;
  void* copy_to_;
  std::uint64_t chunk_count_;  ///< elements of a chunk
  std::uint64_t chunks_;
  std::vector<std::byte*> buffers_;
};

}  // namespace tessera::comm
