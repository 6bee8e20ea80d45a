// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include <fmt/core.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/memory/pages.h"

namespace tessera::memory {

// Header in front of the data of a small block. The block is aligned to 128 bytes, so its data
// never starts at a page boundary, whereas pooled and mapped blocks always do: this distinguishes
// them without a lookup.
struct BlockCache::SmallHeader {
  Charge charge;
  int size_class = 0;
};

namespace {

constexpr std::size_t kSmallAlignment = 128;
constexpr std::size_t kHeaderBytes = 64;
constexpr std::int64_t kFreeSlackBytes = std::int64_t{64}
                                         << 20;  // small runs never give memory back

bool on_page(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kPageBytes == 0;
}

bool is_limited(__rlimit_resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/// Returns the fix of an out-of-memory error. Limits of this process come first: a larger machine
/// would not help.
std::string remedy() {
  std::string limits;
  if (is_limited(RLIMIT_AS)) limits += "raise the limit on address space (ulimit -v), or ";
  if (is_limited(RLIMIT_DATA)) limits += "raise the limit on data (ulimit -d), or ";
  return limits +
         "use a smaller train_micro_batch_size_per_gpu with more gradient_accumulation_steps";
}

[[noreturn]] void out_of_memory(std::size_t bytes) {
  const Usage usage = current_ledger().usage();
  std::string held;
  for (int i = 0; i < kNumTags; ++i) {
    held += fmt::format(
        "{}{} {}",
        i == 0 ? "" : ", ",
        name(static_cast<Tag>(i)),
        text::bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, usage.current[i]))));
  }
  throw Error(
      Error::Kind::Memory,
      fmt::format("the system has no {} more; this process holds {} ({})",
                  text::bytes(bytes),
                  text::bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, usage.total))),
                  held),
      remedy());
}

}  // namespace

BlockCache::~BlockCache() {
  release();
}

void* BlockCache::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::scoped_lock lock(mutex_);
  // A size that would overflow when rounded up is rejected like any other size that the system
  // cannot provide.
  const bool sane = bytes <= SIZE_MAX / 4;
  void* data = sane ? try_allocate(bytes) : nullptr;
  if (data == nullptr && sane) {
    release_small();
    release_pooled();
    while (release_one_mapping()) {
    }
    data = try_allocate(bytes);
  }
  if (data == nullptr) out_of_memory(bytes);
  return data;
}

void BlockCache::free(void* data) noexcept {
  if (data == nullptr) return;
  const std::scoped_lock lock(mutex_);
  if (on_page(data)) {
    free_block(blocks_.find(data)->second.get());
  } else {
    free_small(data);
  }
}

std::int64_t BlockCache::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return cached_;
}

void BlockCache::release() noexcept {
  const std::scoped_lock lock(mutex_);
  release_small();
  release_pooled();
  while (release_one_mapping()) {
  }
}

void* BlockCache::try_allocate(std::size_t bytes) {
  if (bytes <= kSmallBytes) return take_small(bytes);
  return bytes <= kPooledBytes ? take_pooled(bytes) : take_mapping(bytes);
}

// Size classes in units of 128 bytes: 1, 2, 3, 4, then 5..8, 10..16 in steps of 2, 20..32 in steps
// of 4, and so on.
int BlockCache::class_of(std::size_t bytes) {
  const std::size_t units = (bytes + kSmallAlignment - 1) / kSmallAlignment;
  if (units <= 4) return static_cast<int>(units) - 1;
  const int exponent = static_cast<int>(std::bit_width(units - 1)) - 3;  // 5..8 units: 0
  const std::size_t step = std::size_t{1} << exponent;
  const auto steps = static_cast<int>((units + step - 1) / step);
  return 4 * exponent + steps - 1;
}

std::size_t BlockCache::class_bytes(int size_class) {
  if (size_class < 4) return (static_cast<std::size_t>(size_class) + 1) * kSmallAlignment;
  const int exponent = (size_class - 4) / 4;
  const std::size_t steps = 5 + static_cast<std::size_t>(size_class) % 4;
  return (steps << exponent) * kSmallAlignment;
}

void* BlockCache::take_small(std::size_t bytes) {
  static_assert(sizeof(SmallHeader) <= kHeaderBytes);
  const int size_class = class_of(bytes + kHeaderBytes);
  const std::size_t size = class_bytes(size_class);
  std::vector<void*>& free = small_[static_cast<std::size_t>(size_class)];
  void* block = nullptr;
  if (!free.empty()) {
    block = free.back();
    free.pop_back();
    cached_ -= static_cast<std::int64_t>(size);
  } else {
    block = std::aligned_alloc(kSmallAlignment, size);
    if (block == nullptr) return nullptr;
  }
  allow(block, kHeaderBytes + bytes);
  new (block)
      SmallHeader{Charge::open(static_cast<std::int64_t>(bytes), current_tag()), size_class};
  count_use(static_cast<std::int64_t>(size));
  return static_cast<std::byte*>(block) + kHeaderBytes;
}

void BlockCache::free_small(void* data) noexcept {
  auto* const header = reinterpret_cast<SmallHeader*>(static_cast<std::byte*>(data) - kHeaderBytes);
  header->charge.release();
  const auto size_class = static_cast<std::size_t>(header->size_class);
  const std::size_t size = class_bytes(header->size_class);
  count_use(-static_cast<std::int64_t>(size));
  try {
    small_[size_class].push_back(header);
    cached_ += static_cast<std::int64_t>(size);
    forbid(header, size);
  } catch (const std::bad_alloc&) {  // no memory to record it
    std::free(header);
  }
}

void* BlockCache::take_pooled(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kPageBytes);
  Block wanted;
  wanted.bytes = size;
  const auto found = free_pooled_.lower_bound(&wanted);
  Block* block = nullptr;
  if (found != free_pooled_.end()) {
    block = *found;
    free_pooled_.erase(found);
    if (block->resident) cached_ -= static_cast<std::int64_t>(block->bytes);
    split(block, size);
  } else {
    block = grow_segment(size);
    if (block == nullptr) return nullptr;
  }
  use(block, bytes);
  return block->data;
}

// The remainder becomes a free block of its own. Remainders below kSmallBytes are kept too: they
// merge with a neighbour later.
void BlockCache::split(Block* block, std::size_t bytes) {
  if (block->bytes == bytes) return;
  auto rest = std::make_unique<Block>();
  rest->data = block->data + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->previous = block;
  rest->next = block->next;
  rest->used = false;
  rest->resident = block->resident;
  Block* const made = rest.get();
  blocks_.emplace(made->data, std::move(rest));
  (made->next != nullptr ? made->next->previous : made->segment->last) = made;
  block->next = made;
  block->bytes = bytes;
  free_pooled_.insert(made);
  if (made->resident) cached_ += static_cast<std::int64_t>(made->bytes);
}

// Returns a new block above everything that was handed out of a segment, or in a new segment.
BlockCache::Block* BlockCache::grow_segment(std::size_t bytes) {
  make_room(bytes);
  auto place = std::find_if(segments_.begin(), segments_.end(), [&](const auto& segment) {
    return segment->top + bytes <= kSegmentBytes;
  });
  if (place == segments_.end()) {
    std::byte* const data = map_pages(kSegmentBytes);
    if (data == nullptr) return nullptr;
    segments_.push_back(std::make_unique<Segment>());
    place = segments_.end() - 1;
    (*place)->data = data;
  }
  Segment& segment = **place;
  auto block = std::make_unique<Block>();
  block->data = segment.data + segment.top;
  block->bytes = bytes;
  block->segment = &segment;
  block->previous = segment.last;
  if (segment.last != nullptr) segment.last->next = block.get();
  segment.last = block.get();
  segment.top += bytes;
  Block* const made = block.get();
  blocks_.emplace(made->data, std::move(block));
  return made;
}

void* BlockCache::take_mapping(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kHugePageBytes);
  Block wanted;
  wanted.bytes = size;
  const auto found = free_mappings_.lower_bound(&wanted);
  Block* block = nullptr;
  if (found != free_mappings_.end() && (*found)->bytes / 4 * 3 <= size) {
    block = *found;
    free_mappings_.erase(found);
    cached_ -= static_cast<std::int64_t>(block->bytes);
  } else {
    make_room(size);
    std::byte* const data = map_pages(size);
    if (data == nullptr) return nullptr;
    auto made = std::make_unique<Block>();
    made->data = data;
    made->bytes = size;
    block = made.get();
    blocks_.emplace(data, std::move(made));
  }
  use(block, bytes);
  return block->data;
}

void BlockCache::use(Block* block, std::size_t requested) noexcept {
  allow(block->data, requested);
  forbid(block->data + requested, block->bytes - requested);
  block->used = true;
  block->resident = true;
  block->charge = Charge::open(static_cast<std::int64_t>(requested), current_tag());
  count_use(static_cast<std::int64_t>(block->bytes));
}

void BlockCache::count_use(std::int64_t bytes) noexcept {
  used_ += bytes;
  used_peak_ = std::max(used_peak_, used_);
}

void BlockCache::free_block(Block* block) noexcept {
  block->charge.release();
  block->used = false;
  count_use(-static_cast<std::int64_t>(block->bytes));
  cached_ += static_cast<std::int64_t>(block->bytes);
  forbid(block->data, block->bytes);
  if (block->segment == nullptr) {
    free_mappings_.insert(block);
    return;
  }
  if (Block* const next = block->next; next != nullptr && !next->used) {
    take_for_merge(next);
    merge(block, next);
  }
  if (Block* const before = block->previous; before != nullptr && !before->used) {
    take_for_merge(before);
    block = merge(before, block);
  }
  free_pooled_.insert(block);
}

// A neighbour whose pages were given back counts as cached again, because the merged block is given
// back as a whole.
void BlockCache::take_for_merge(Block* block) noexcept {
  free_pooled_.erase(block);
  if (!block->resident) cached_ += static_cast<std::int64_t>(block->bytes);
  block->resident = true;
}

BlockCache::Block* BlockCache::merge(Block* block, Block* next) noexcept {
  block->bytes += next->bytes;
  block->next = next->next;
  (next->next != nullptr ? next->next->previous : next->segment->last) = block;
  blocks_.erase(next->data);
  return block;
}

// The peak in use bounds the cache: before more memory is taken, free memory beyond a quarter of
// the peak is given back.
void BlockCache::make_room(std::size_t bytes) noexcept {
  const auto need = used_ + static_cast<std::int64_t>(bytes);
  const auto limit =
      static_cast<std::int64_t>(kSlack * static_cast<double>(std::max(need, used_peak_))) +
      kFreeSlackBytes;
  while (need + cached_ > limit && release_one_mapping()) {
  }
  if (need + cached_ > limit) release_pooled();
  if (need + cached_ > limit) release_small();
}

void BlockCache::release_small() noexcept {
  for (int i = 0; i < kNumClasses; ++i) {
    for (void* block : small_[static_cast<std::size_t>(i)]) {
      cached_ -= static_cast<std::int64_t>(class_bytes(i));
      allow(block, class_bytes(i));
      std::free(block);
    }
    small_[static_cast<std::size_t>(i)].clear();
  }
}

void BlockCache::release_pooled() noexcept {
  for (Block* block : free_pooled_) {
    if (!block->resident) continue;
    discard_pages(block->data, block->bytes);
    block->resident = false;
    cached_ -= static_cast<std::int64_t>(block->bytes);
  }
}

// The largest first, for the fewest calls per byte.
bool BlockCache::release_one_mapping() noexcept {
  if (free_mappings_.empty()) return false;
  const auto largest = std::prev(free_mappings_.end());
  Block* const block = *largest;
  free_mappings_.erase(largest);
  cached_ -= static_cast<std::int64_t>(block->bytes);
  unmap_pages(block->data, block->bytes);
  blocks_.erase(block->data);
  return true;
}

}  // namespace tessera::memory
