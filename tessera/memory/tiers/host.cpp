// SPDX-License-Identifier: Apache-2.0
// The memory of the host as a tier: a copy apart from working memory. Transfers are made by wait(),
// one after the other, so that using memory before it is waited for gives wrong values every time.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::memory {
namespace {

using Blocks = std::vector<std::shared_ptr<StagingMemory>>;

/// Calls fn(part of the block at that index, part of `bytes`) for each block of a range.
template <class Byte, class Fn>
void for_each_block(std::int64_t at, std::span<Byte> bytes, std::int64_t block, const Fn& fn) {
  const auto size = static_cast<std::size_t>(block);
  for (auto position = static_cast<std::size_t>(at); !bytes.empty();) {
    const std::size_t offset = position % size;
    const std::size_t take = std::min(bytes.size(), size - offset);
    fn(position / size, offset, bytes.first(take));
    bytes = bytes.subspan(take);
    position += take;
  }
}

class Snapshot final : public ByteSource {
 public:
  Snapshot(Blocks blocks, std::int64_t block) : blocks_(std::move(blocks)), block_(block) {}
  [[nodiscard]] std::uint64_t size() const override {
    return blocks_.size() * static_cast<std::uint64_t>(block_);
  }
  void read(std::uint64_t begin, std::span<std::byte> out) const override {
    TESSERA_ASSERT(begin + out.size() <= size());
    for_each_block(static_cast<std::int64_t>(begin),
                   out,
                   block_,
                   [&](std::size_t index, std::size_t offset, std::span<std::byte> part) {
                     std::memcpy(part.data(), blocks_[index]->bytes().data() + offset, part.size());
                   });
  }

 private:
  Blocks blocks_;
  std::int64_t block_;
};

class HostFile final : public TierFile {
 public:
  HostFile(std::int64_t bytes, std::int64_t block, TierUse& use) : block_(block), use_(use) {
    for (std::int64_t at = 0; at < bytes; at += block_)
      blocks_.push_back(std::make_shared<StagingMemory>(block_));
  }

  [[nodiscard]] std::int64_t size() const override { return std::ssize(blocks_) * block_; }
  Ticket read(std::int64_t at, std::span<std::byte> to) override { return add({at, to, {}}); }
  Ticket write(std::int64_t at, std::span<const std::byte> from) override {
    return add({at, {}, from});
  }
  void wait(Ticket ticket) override {
    for (; done_ < ticket.id && !waiting_.empty(); ++done_) {
      make(waiting_.front());
      waiting_.pop_front();
    }
  }
  std::shared_ptr<const ByteSource> snapshot() override {
    wait({done_ + waiting_.size()});
    return std::make_shared<Snapshot>(blocks_, block_);
  }

 private:
  struct Transfer {
    std::int64_t at = 0;
    std::span<std::byte> to;
    std::span<const std::byte> from;
  };

  Ticket add(const Transfer& transfer) {
    const std::size_t bytes = transfer.to.size() + transfer.from.size();
    TESSERA_ASSERT(transfer.at % block_ == 0 && bytes % static_cast<std::size_t>(block_) == 0);
    TESSERA_ASSERT(transfer.at + static_cast<std::int64_t>(bytes) <= size());
    waiting_.push_back(transfer);
    return {done_ + waiting_.size()};
  }

  void make(const Transfer& transfer) {
    for_each_block(transfer.at,
                   transfer.to,
                   block_,
                   [&](std::size_t index, std::size_t, std::span<std::byte> part) {
                     std::memcpy(part.data(), blocks_[index]->bytes().data(), part.size());
                   });
    for_each_block(transfer.at,
                   transfer.from,
                   block_,
                   [&](std::size_t index, std::size_t, std::span<const std::byte> part) {
                     // Snapshots keep the old block.
                     if (blocks_[index].use_count() > 1)
                       blocks_[index] = std::make_shared<StagingMemory>(block_);
                     std::memcpy(blocks_[index]->bytes().data(), part.data(), part.size());
                   });
    use_.read_bytes += std::ssize(transfer.to);
    use_.written_bytes += std::ssize(transfer.from);
  }

  std::int64_t block_;
  TierUse& use_;
  Blocks blocks_;
  std::deque<Transfer> waiting_;
  std::uint64_t done_ = 0;
};

class HostTier final : public Tier {
 public:
  explicit HostTier(const TierOptions& options) : block_(options.block_bytes) {
    TESSERA_ASSERT(block_ > 0);
  }
  [[nodiscard]] std::string_view name() const override { return "host"; }
  [[nodiscard]] std::int64_t block() const override { return block_; }
  std::unique_ptr<TierFile> open(std::string /*what*/, std::int64_t bytes) override {
    TESSERA_ASSERT(bytes % block_ == 0);
    return std::make_unique<HostFile>(bytes, block_, use_);
  }
  [[nodiscard]] TierUse use() const override { return use_; }

 private:
  std::int64_t block_;
  TierUse use_;
};

TESSERA_TIER("host", HostTier);

}  // namespace
}  // namespace tessera::memory
