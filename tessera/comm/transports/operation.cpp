// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/operation.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"

namespace tessera::comm {
namespace {

/// Number of bits of Slot::taken.
constexpr std::uint64_t kMaxChunks = 64;
/// Below this size, taking a chunk costs more than better balance gains.
constexpr std::uint64_t kMinChunkBytes = std::uint64_t{64} << 10;

}  // namespace

bool Operation::drained() const {
  const Slot* slot = start_.slot;
  // The slot is only reused after it was free.
  return slot == nullptr || slot->published.load() != start_.sequence + 1 || slot->free();
}

void Operation::readers(std::vector<int>& ranks) const {
  ranks.clear();
  if (drained()) return;
  const Channel& channel = start_.channel;
  for (int member = 0; member < channel.size(); ++member) {
    if (member != channel.index() && !start_.slot->acked_by(static_cast<std::size_t>(member)))
      ranks.push_back(channel.rank_of(member));
  }
}

bool Operation::all_posted() {
  const auto members = static_cast<std::size_t>(channel().size());
  while (slots_.size() < members) {
    Slot* const slot = posted(static_cast<int>(slots_.size()));
    if (slot == nullptr) return false;
    slots_.push_back(slot);
  }
  return true;
}

void Operation::acknowledge_all() {
  for (int member = 0; member < channel().size(); ++member)
    channel().acknowledge(member, *slots_[static_cast<std::size_t>(member)]);
}

void Operation::missing_posts(std::vector<int>& ranks) {
  ranks.clear();
  for (int member = 0; member < channel().size(); ++member)
    if (posted(member) == nullptr) ranks.push_back(channel().rank_of(member));
}

PullParts::PullParts(Start start, ChannelContext& context, std::vector<Part> parts)
    : Operation(std::move(start)), context_(context), parts_(std::move(parts)) {
  complete_ = parts_.empty();
}

bool PullParts::advance() {
  if (complete_ || cancelled()) return false;
  const auto pull = [this](const Part& part) {
    Slot* const slot = posted(part.member);
    if (slot == nullptr) return false;
    const int rank = channel().rank_of(part.member);
    if (part.bytes != 0)
      copy_bytes(part.out, context_.address(rank, slot->offset) + part.offset, part.bytes);
    channel().acknowledge(part.member, *slot);
    return true;
  };
  const bool moved = std::erase_if(parts_, pull) != 0;
  complete_ = parts_.empty();
  return moved;
}

void PullParts::missing(std::vector<int>& ranks) {
  ranks.clear();
  for (const Part& part : parts_)
    ranks.push_back(channel().rank_of(part.member));
}

ReduceParts::ReduceParts(Start start,
                         ChannelContext& context,
                         std::size_t offset,
                         Span out,
                         Write write,
                         const void* own)
    : Operation(std::move(start)),
      context_(context),
      offset_(offset),
      out_(out),
      write_(write),
      own_(own) {
  complete_ = false;
}

bool ReduceParts::advance() {
  if (complete_ || cancelled() || !all_posted()) return false;
  if (out_.count != 0) {
    std::vector<const void*> inputs;
    if (write_ == Write::Accumulate) inputs.push_back(out_.data);
    for (int member = 0; member < channel().size(); ++member) {
      const Slot& slot = *slots()[static_cast<std::size_t>(member)];
      const bool mine = own_ != nullptr && member == channel().index();
      inputs.push_back(mine ? own_
                            : context_.address(channel().rank_of(member), slot.offset) + offset_);
    }
    reduce_arrays(signature().op, out_.dtype, out_.data, inputs, out_.count);
  }
  acknowledge_all();
  complete_ = true;
  return true;
}

ReduceInPlace::ReduceInPlace(Start start, ChannelContext& context, void* copy_to)
    : Operation(std::move(start)), context_(context), copy_to_(copy_to) {
  const std::uint64_t size = size_of(signature().dtype);
  const std::uint64_t least = kMinChunkBytes / size;
  chunk_count_ = std::max(least, (signature().count + kMaxChunks - 1) / kMaxChunks);
  // Whole cache lines, so that two ranks never write to the same one.
  const std::uint64_t line = 64 / size;
  chunk_count_ = (chunk_count_ + line - 1) / line * line;
  chunks_ = (signature().count + chunk_count_ - 1) / chunk_count_;
  complete_ = false;
}

bool ReduceInPlace::advance() {
  if (complete_ || cancelled() || !all_posted()) return false;
  if (buffers_.empty()) {
    for (int member = 0; member < channel().size(); ++member) {
      const Slot& slot = *slots()[static_cast<std::size_t>(member)];
      buffers_.push_back(context_.address(channel().rank_of(member), slot.offset));
    }
  }
  const bool moved = take_chunks();
  if (slots().front()->finished.load() < chunks_) return moved;
  finish();
  return true;
}

// Every rank begins with its own chunks, which stay in its cache from one call to the next, and
// then takes chunks that the others have not reached.
bool ReduceInPlace::take_chunks() {
  Slot& tally = *slots().front();
  const auto index = static_cast<std::uint64_t>(channel().index());
  const std::uint64_t first = index * chunks_ / static_cast<std::uint64_t>(channel().size());
  bool moved = false;
  for (std::uint64_t i = 0; i < chunks_ && !context_.aborted(); ++i) {
    const std::uint64_t chunk = (first + i) % chunks_;
    const std::uint64_t bit = std::uint64_t{1} << chunk;
    if ((tally.taken.load() & bit) != 0 || (tally.taken.fetch_or(bit) & bit) != 0) continue;
    reduce_chunk(chunk);
    moved = true;
    if (tally.finished.fetch_add(1) + 1 == chunks_) channel().ring_others();
  }
  return moved;
}

void ReduceInPlace::reduce_chunk(std::uint64_t chunk) {
  const std::uint64_t begin = chunk * chunk_count_;
  const std::uint64_t count = std::min(chunk_count_, signature().count - begin);
  const std::uint64_t size = size_of(signature().dtype);
  std::vector<void*> parts;
  for (std::byte* buffer : buffers_)
    parts.push_back(buffer + begin * size);
  reduce_in_place(signature().op, signature().dtype, parts, count);
}

void ReduceInPlace::finish() {
  if (copy_to_ != nullptr) {
    const auto self = static_cast<std::size_t>(channel().index());
    copy_bytes(copy_to_, buffers_[self], signature().count * size_of(signature().dtype));
  }
  acknowledge_all();
  release();  // every chunk is written: peers do not access this memory any more
  complete_ = true;
}

void ReduceInPlace::missing(std::vector<int>& ranks) {
  ranks.clear();
  if (complete_) return;
  missing_posts(ranks);
  if (!ranks.empty()) return;
  // All have posted; some rank has taken a chunk and not finished it.
  for (const int rank : channel().ranks())
    if (rank != context_.rank) ranks.push_back(rank);
}

}  // namespace tessera::comm
