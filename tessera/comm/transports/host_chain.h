// SPDX-License-Identifier: Apache-2.0
// Reductions whose sums go from host to host, for groups with several members on each host.
//
// The ranks of the hosts that have the same local number are a column; each column reduces its own
// share of the elements. The member of a column on the first host adds the inputs of its host in
// rank order and sends the sum to the second host, where the inputs of that host are added to it,
// and so on. The members of a host are neighbours in the group, so the elements are added in rank
// order, as on one host, and the bits are the same; but each host sends one sum instead of the
// inputs of all its ranks. Data goes in pieces, so that all hosts work at the same time.
//
// An operation begins to send when all members have posted it, and it is complete when this rank
// has its output and has done its part for the others, so that a rank that has waited is not needed
// any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/transports/host_bridge.h"
#include "tessera/comm/transports/host_column.h"
#include "tessera/comm/transports/operation.h"

namespace tessera::comm {

/// Adds the inputs of this host to sums that come from the host before, and sends them on. Derived
/// classes determine what is added to at first and who gets the sums of all hosts.
class HostChain : public Operation {
 public:
  using Room = std::function<RegionPtr(std::size_t bytes)>;
  bool advance() final;
  void missing(std::vector<int>& ranks) final;

 protected:
  /// Elements that are added and sent at once.
  struct Piece {
    int host = 0;          ///< the host that needs the sum (reduce-scatter)
    std::size_t at = 0;    ///< place in the memory of the column, in elements
    std::size_t from = 0;  ///< place in the inputs, in elements
    std::size_t count = 0;
  };
  HostChain(Start start, ChannelContext& context, HostBridge& bridge, HostColumn column);
  /// Sets what the column reduces, and expects the sums of the host before. `room` returns memory.
  void set_pieces(std::vector<Piece> pieces, const Room& room);
  /// Appends pieces of `count` elements that begin at these places.
  static void cut(std::vector<Piece>& pieces, Piece whole, std::size_t element_bytes);

  /// Called once all members have posted, before anything else.
  virtual void begin() {}
  /// Returns what the first host adds to, null for nothing; `ready`: false if it has not arrived.
  virtual const void* accumulator(const Piece& piece, bool& ready);
  /// Returns where the last host writes the sum.
  virtual void* total_of(const Piece& piece) = 0;
  /// The last host has written the sum.
  virtual void send_total(const Piece& piece) = 0;
  /// Uses sums of all hosts that have arrived; returns whether there were any.
  virtual bool take_totals() = 0;
  /// Returns whether this rank has its output, once it has added all pieces.
  virtual bool has_output() = 0;
  virtual void finish() {}
  /// Returns the rank that has to act before this one can go on, once all pieces are added.
  virtual int awaited_rank() = 0;

  std::shared_ptr<const Inbox> expect(int host, Flow flow, RegionPtr memory, std::size_t bytes);
  void send(int host,
            Flow flow,
            const RegionPtr& memory,
            const void* data,
            std::size_t begin,
            std::size_t count);
  /// Returns the input of a member of this host; local: 0 to column().locals - 1.
  std::byte* input(int local);
  [[nodiscard]] const HostColumn& column() const { return column_; }
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// Memory of the column for sums of this host.
  [[nodiscard]] const RegionPtr& sums() const { return sums_; }
  [[nodiscard]] std::byte* sum_of(const Piece& piece) const {
    return static_cast<std::byte*>(sums_->data()) + piece.at * size_;
  }

 private:
  bool add(const Piece& piece);

  ChannelContext& context_;
  HostBridge& bridge_;
  HostColumn column_;
  std::size_t size_;  ///< bytes of an element
  std::vector<Piece> pieces_;
  std::size_t added_ = 0;  ///< number of pieces
  bool begun_ = false;
  RegionPtr sums_;
  std::shared_ptr<const Inbox> partial_;  ///< sums of the hosts before; null on the first host
};

/// Reduces into `out`, the part of this rank. Between hosts, a host sends the input of one rank,
/// and the last one the parts of the others once more. With Write::Accumulate each owner first
/// sends what is added to.
class ChainReduceScatter final : public HostChain {
 public:
  ChainReduceScatter(Start start,
                     ChannelContext& context,
                     HostBridge& bridge,
                     HostColumn column,
                     Span out,
                     Write write,
                     const Room& room);

 private:
  void begin() override;
  const void* accumulator(const Piece& piece, bool& ready) override;
  void* total_of(const Piece& piece) override;
  void send_total(const Piece& piece) override;
  bool take_totals() override;
  bool has_output() override { return total_ == nullptr; }
  int awaited_rank() override { return column().ranks.back(); }
  [[nodiscard]] std::byte* out_of(const Piece& piece) const;
  /// Returns the place of a piece in the part of its owner, in bytes.
  [[nodiscard]] std::size_t place_of(const Piece& piece) const;

  Span out_;
  RegionPtr kept_;                      ///< accumulator of this rank, until it is sent
  std::shared_ptr<const Inbox> total_;  ///< null: on the last host, or taken
  std::vector<std::shared_ptr<const Inbox>> accumulators_;  ///< by host; those of the first host
};

/// Reduces in place. The sums of the last host go back from host to host, and are written to the
/// buffers of all members: every host sends the data once in each direction.
class ChainAllReduce final : public HostChain {
 public:
  /// `data`: the memory of the caller, which gets the result.
  ChainAllReduce(Start start,
                 ChannelContext& context,
                 HostBridge& bridge,
                 HostColumn column,
                 void* data,
                 const Room& room);

 private:
  void* total_of(const Piece& piece) override { return sum_of(piece); }
  void send_total(const Piece& piece) override { pass_on(piece, sums(), sum_of(piece)); }
  bool take_totals() override;
  bool has_output() override;
  void finish() override;
  int awaited_rank() override;
  void pass_on(const Piece& piece, const RegionPtr& memory, const std::byte* total);
  Slot& tally();

  void* data_;
  std::uint64_t all_pieces_ = 0;        ///< of all columns
  std::size_t passed_ = 0;              ///< pieces of this column that have arrived
  std::shared_ptr<const Inbox> total_;  ///< null on the last host
};

}  // namespace tessera::comm
