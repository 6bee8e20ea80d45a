// SPDX-License-Identifier: Apache-2.0
// The caching allocator without libtorch: keeps freed blocks of memory and hands them out again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

/// A cache of memory blocks. Blocks of three size ranges are kept in different ways:
///
///   up to kSmallBytes    size classes a quarter of a power of two apart, from malloc
///   up to kPooledBytes   cut best-fit out of segments of kSegmentBytes, merged again when freed
///   above                one mapping each, reused only for requests of at least three quarters of
///                        its size: if it were split, a small long-lived tensor would occupy the
///                        space of a large one
///
/// kPooledBytes is chosen so that the summed gradients of a layer, which replace its activations,
/// are pooled.
///
/// Segments and mappings are aligned to 2 MiB and ask for huge pages. Before it takes more memory
/// from the kernel, the cache gives back what it holds beyond kSlack times the peak in use, so that
/// it cannot grow without bound. Cost: one uncontended lock. Threads: any; a block may be freed by
/// another thread than the one that allocated it.
class BlockCache {
 public:
  static constexpr std::size_t kSmallBytes = std::size_t{256} << 10;
  static constexpr std::size_t kPooledBytes = std::size_t{64} << 20;
  static constexpr std::size_t kSegmentBytes = std::size_t{512} << 20;
  static constexpr double kSlack = 1.03;

  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// Returns uninitialized memory, aligned to 64 bytes and charged to the ledger and tag of this
  /// thread. Returns null for 0 bytes. Throws Error{Memory} with the numbers if the system has no
  /// more memory even after release().
  void* allocate(std::size_t bytes);
  /// Frees a block; the charge is taken back from the ledger and tag that it was made under. Null
  /// is allowed.
  void free(void* data) noexcept;

  /// Returns the bytes that the cache holds and that are not in use.
  [[nodiscard]] std::int64_t cached_bytes() const;
  /// Gives the unused bytes back to the kernel.
  void release() noexcept;

 private:
  struct SmallHeader;
  struct Segment;
  // A part of a segment, or a whole mapping (segment is null). `next` and `previous` are neighbours
  // in the segment.
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Segment* segment = nullptr;
    Block* previous = nullptr;
    Block* next = nullptr;
    bool used = true;
    bool resident = true;  // false: free, and its pages were given back to the kernel
    Charge charge;
  };
  struct Segment {
    std::byte* data = nullptr;
    std::size_t top = 0;  // memory above it has never been handed out
    Block* last = nullptr;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
  };
  using FreeList = std::set<Block*, BySize>;
  static constexpr int kNumClasses = 64;

  static int class_of(std::size_t bytes);
  static std::size_t class_bytes(int size_class);
  void* try_allocate(std::size_t bytes);
  void* take_small(std::size_t bytes);
  void* take_pooled(std::size_t bytes);
  void* take_mapping(std::size_t bytes);
  void free_small(void* data) noexcept;
  void free_block(Block* block) noexcept;
  Block* grow_segment(std::size_t bytes);
  void split(Block* block, std::size_t bytes);
  void take_for_merge(Block* block) noexcept;
  Block* merge(Block* block, Block* next) noexcept;
  void make_room(std::size_t bytes) noexcept;
  void release_small() noexcept;
  void release_pooled() noexcept;
  bool release_one_mapping() noexcept;
  void use(Block* block, std::size_t requested) noexcept;
  void count_use(std::int64_t bytes) noexcept;

  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kNumClasses> small_;  // free blocks of each class
  std::unordered_map<void*, std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Segment>> segments_;
  FreeList free_pooled_, free_mappings_;
  std::int64_t used_ = 0, used_peak_ = 0;  // bytes of blocks, not of requests
  std::int64_t cached_ = 0;
};

}  // namespace tessera::memory
