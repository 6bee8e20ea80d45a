// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/host_chain.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

/// Hosts wait longer for larger pieces; each piece costs a message.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kCacheLine = 64;

}  // namespace

HostChain::HostChain(Start start, ChannelContext& context, HostBridge& bridge, HostColumn column)
    : Operation(std::move(start)),
      context_(context),
      bridge_(bridge),
      column_(std::move(column)),
      size_(size_of(signature().dtype)) {
  complete_ = false;
}

void HostChain::cut(std::vector<Piece>& pieces, Piece whole, std::size_t element_bytes) {
  const std::size_t most = kPieceBytes / element_bytes;
  for (std::size_t done = 0; done < whole.count; done += most) {
    pieces.push_back(
        {whole.host, whole.at + done, whole.from + done, std::min(most, whole.count - done)});
  }
}

void HostChain::set_pieces(std::vector<Piece> pieces, const Room& room) {
  pieces_ = std::move(pieces);
  if (pieces_.empty()) return;
  const std::size_t bytes = (pieces_.back().at + pieces_.back().count) * size_;
  sums_ = room(bytes);
  if (!column_.is_first()) partial_ = expect(column_.host - 1, Flow::Partial, room(bytes), bytes);
}

std::shared_ptr<const Inbox> HostChain::expect(int host,
                                               Flow flow,
                                               RegionPtr memory,
                                               std::size_t bytes) {
  return bridge_.expect(column_.ranks[static_cast<std::size_t>(host)],
                        flow,
                        channel(),
                        sequence(),
                        std::move(memory),
                        bytes);
}

void HostChain::send(int host,
                     Flow flow,
                     const RegionPtr& memory,
                     const void* data,
                     std::size_t begin,
                     std::size_t count) {
  bridge_.send(column_.ranks[static_cast<std::size_t>(host)],
               flow,
               channel(),
               sequence(),
               memory,
               static_cast<const std::byte*>(data),
               begin,
               count * size_);
}

std::byte* HostChain::input(int local) {
  const int member = column_.first_local() + local;
  return context_.address(channel().rank_of(member),
                          slots()[static_cast<std::size_t>(member)]->offset);
}

const void* HostChain::accumulator(const Piece& /*piece*/, bool& ready) {
  ready = true;
  return nullptr;
}

bool HostChain::advance() {
  if (complete_ || cancelled() || !all_posted()) return false;
  if (!std::exchange(begun_, true)) begin();
  bool moved = false;
  while (added_ < pieces_.size() && !context_.aborted() && add(pieces_[added_])) {
    ++added_;
    moved = true;
  }
  moved = take_totals() || moved;
  if (added_ < pieces_.size() || !has_output()) return moved;
  finish();
  acknowledge_all();
  complete_ = true;
  return true;
}

/// Adds the inputs of this host to the sum of the hosts before, and hands the sum on. Returns false
/// if that has not arrived.
bool HostChain::add(const Piece& piece) {
  std::vector<const void*> inputs;
  if (partial_ != nullptr) {
    if (partial_->arrived.load() < (piece.at + piece.count) * size_) return false;
    inputs.push_back(partial_->data() + piece.at * size_);
  } else {
    bool ready = false;
    const void* const before = accumulator(piece, ready);
    if (!ready) return false;
    if (before != nullptr) inputs.push_back(before);
  }
  for (int local = 0; local < column_.locals; ++local)
    inputs.push_back(input(local) + piece.from * size_);
  void* const sum = column_.is_last() ? total_of(piece) : sum_of(piece);
  reduce_arrays(signature().op, signature().dtype, sum, inputs, piece.count);
  if (column_.is_last()) {
    send_total(piece);
  } else {
    send(column_.host + 1, Flow::Partial, sums_, sum, piece.at * size_, piece.count);
  }
  return true;
}

void HostChain::missing(std::vector<int>& ranks) {
  ranks.clear();
  if (complete_) return;
  missing_posts(ranks);
  if (!ranks.empty()) return;
  const auto rank_at = [this](int host) { return column_.ranks[static_cast<std::size_t>(host)]; };
  if (added_ == pieces_.size()) {
    ranks.push_back(awaited_rank());
  } else {
    ranks.push_back(column_.is_first() ? rank_at(pieces_[added_].host) : rank_at(column_.host - 1));
  }
}

ChainReduceScatter::ChainReduceScatter(Start start,
                                       ChannelContext& context,
                                       HostBridge& bridge,
                                       HostColumn given,
                                       Span out,
                                       Write write,
                                       const Room& room)
    : HostChain(std::move(start), context, bridge, std::move(given)), out_(out) {
  std::vector<Piece> pieces;
  for (int host = 0; host < column().hosts(); ++host) {
    const int owner = host * column().locals + column().share;
    cut(pieces,
        {host,
         out.count * static_cast<std::size_t>(host),
         out.count * static_cast<std::size_t>(owner),
         out.count},
        size());
  }
  set_pieces(std::move(pieces), room);
  if (!column().is_last())
    total_ = expect(column().hosts() - 1, Flow::Total, room(out.bytes()), out.bytes());
  if (write == Write::Store) return;
  if (!column().is_first()) kept_ = room(out.bytes());
  accumulators_.resize(static_cast<std::size_t>(column().hosts()));
  for (int host = 1; column().is_first() && host < column().hosts(); ++host)
    accumulators_[static_cast<std::size_t>(host)] =
        expect(host, Flow::Accumulator, room(out.bytes()), out.bytes());
}

std::size_t ChainReduceScatter::place_of(const Piece& piece) const {
  return (piece.at - out_.count * static_cast<std::size_t>(piece.host)) * size();
}

std::byte* ChainReduceScatter::out_of(const Piece& piece) const {
  return static_cast<std::byte*>(out_.data) + place_of(piece);
}

void ChainReduceScatter::begin() {
  if (kept_ == nullptr) return;
  copy_bytes(kept_->data(), out_.data, out_.bytes());
  for (const Piece& piece : pieces()) {
    if (piece.host != column().host) continue;
    const auto* const data = static_cast<const std::byte*>(kept_->data()) + place_of(piece);
    send(0, Flow::Accumulator, kept_, data, place_of(piece), piece.count);
  }
  kept_ = nullptr;
}

const void* ChainReduceScatter::accumulator(const Piece& piece, bool& ready) {
  ready = true;
  if (accumulators_.empty()) return nullptr;
  if (piece.host == 0) return out_of(piece);
  const Inbox& inbox = *accumulators_[static_cast<std::size_t>(piece.host)];
  ready = inbox.arrived.load() >= place_of(piece) + piece.count * size();
  return inbox.data() + place_of(piece);
}

void* ChainReduceScatter::total_of(const Piece& piece) {
  return piece.host == column().host ? out_of(piece) : sum_of(piece);
}

void ChainReduceScatter::send_total(const Piece& piece) {
  if (piece.host != column().host)
    send(piece.host, Flow::Total, sums(), sum_of(piece), place_of(piece), piece.count);
}

bool ChainReduceScatter::take_totals() {
  if (total_ == nullptr || total_->arrived.load() < out_.bytes()) return false;
  copy_bytes(out_.data, total_->data(), out_.bytes());
  total_ = nullptr;
  return true;
}

ChainAllReduce::ChainAllReduce(Start start,
                               ChannelContext& context,
                               HostBridge& bridge,
                               HostColumn given,
                               void* data,
                               const Room& room)
    : HostChain(std::move(start), context, bridge, std::move(given)), data_(data) {
  const std::uint64_t count = signature().count, line = kCacheLine / size();
  const auto locals = static_cast<std::uint64_t>(column().locals);
  const std::uint64_t most = ((count + locals - 1) / locals + line - 1) / line * line;
  std::vector<Piece> pieces;
  for (std::uint64_t share = 0; share < locals; ++share) {
    const std::uint64_t from = std::min(count, share * most);
    std::vector<Piece> of_share;
    cut(of_share, {0, 0, from, std::min(most, count - from)}, size());
    all_pieces_ += of_share.size();
    if (share == static_cast<std::uint64_t>(column().share)) pieces = std::move(of_share);
  }
  set_pieces(std::move(pieces), room);
  if (column().is_last() || this->pieces().empty()) return;
  const Piece& end = this->pieces().back();
  const std::size_t bytes = (end.at + end.count) * size();
  total_ = expect(column().host + 1, Flow::Total, room(bytes), bytes);
}

/// Counts the pieces that are written to the buffers of this host.
Slot& ChainAllReduce::tally() {
  return *slots()[static_cast<std::size_t>(column().first_local())];
}

bool ChainAllReduce::take_totals() {
  bool moved = false;
  while (total_ != nullptr && passed_ < pieces().size()) {
    const Piece& piece = pieces()[passed_];
    if (total_->arrived.load() < (piece.at + piece.count) * size()) break;
    pass_on(piece, total_->memory, total_->data() + piece.at * size());
    moved = true;
  }
  return moved;
}

/// Sends a sum of all hosts to the host before, and writes it to the buffers of this host.
void ChainAllReduce::pass_on(const Piece& piece, const RegionPtr& memory, const std::byte* total) {
  if (!column().is_first())
    send(column().host - 1, Flow::Total, memory, total, piece.at * size(), piece.count);
  for (int local = 0; local < column().locals; ++local)
    copy_bytes(input(local) + piece.from * size(), total, piece.count * size());
  ++passed_;
  if (tally().finished.fetch_add(1) + 1 == all_pieces_) channel().ring_others();
}

bool ChainAllReduce::has_output() {
  return tally().finished.load() == all_pieces_;
}

void ChainAllReduce::finish() {
  const std::byte* const reduced = input(column().share);
  if (reduced != data_) copy_bytes(data_, reduced, signature().count * size());
  release();  // every piece is written: peers do not access this memory any more
}

int ChainAllReduce::awaited_rank() {
  if (passed_ < pieces().size()) return column().ranks[static_cast<std::size_t>(column().host + 1)];
  const int other = column().first_local() + (column().share + 1) % column().locals;
  return channel().rank_of(other);
}

}  // namespace tessera::comm
