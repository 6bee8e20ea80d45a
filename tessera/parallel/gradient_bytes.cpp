// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/gradient_bytes.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "tessera/parallel/layout.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/resting_sums.h"
#include "tessera/parallel/row_exchange.h"

namespace tessera::parallel {
namespace {

// The table of a buffer that has one of its own; nullptr for other buffers.
const ParamInfo* table_of(const PlannedBuffer& buffer, const Layout& layout) {
  for (const Segment& segment : buffer.layout.segments()) {
    const ParamInfo& info = *segment.info;
    if (info.role == Role::TokenTable && (info.tied || layout.sparse_rows)) return &info;
  }
  return nullptr;
}

// Number of rows for which a rank has memory if a table's gradient consists of rows: its own rows,
// which may all differ as far as there are `ids`, the sums over all ranks, which one rank may own,
// and message buffers. 0 if there are too many for it. Buffers that grow may be twice as large.
std::int64_t rows_kept(const PlannedBuffer& buffer,
                       std::int64_t table_rows,
                       const Layout& layout,
                       std::int64_t tokens,
                       std::int64_t ids) {
  constexpr std::int64_t kShare = TablePlace::kShare;
  const std::int64_t n = buffer.ranks.fold;
  const bool wide = layout.sums == DType::F32 && layout.sent == DType::F32;
  const bool asked = buffer.uses() > 1 || (layout.sparse_rows && n > 1);
  const std::int64_t own =
      std::min(ids, layout.reduction_options().locally() ? layout.accumulation * tokens : tokens);
  if (!wide || !asked || n * own * kShare > table_rows) return 0;
  const std::int64_t owned = table_rows / n, sums = std::min(ids, n * layout.accumulation * tokens);
  const std::int64_t in_sums = sums * kShare > owned ? owned : 2 * sums;
  return 2 * own + in_sums + (n > 1 ? 2 * n * own : 0);
}

// The sums that rest on a disk, as GradientReduction chooses them.
class OnDisk {
 public:
  explicit OnDisk(const Layout& layout) : layout_(layout) {}

  /// Returns whether the sums of a buffer's uses, of `bytes` each, rest there. `local`: ranks sum
  /// gradients of their own.
  bool take(const PlannedBuffer& buffer, std::int64_t bytes, bool local) {
    if (!layout_.offload || !layout_.offload->gradients || local) return false;
    if (!sum_rests(bytes, layout_.disk.block_bytes)) return false;
    all_.push_back({&buffer, bytes});
    return true;
  }
  void add_to(GradientBytes& out) const {
    if (all_.empty()) return;
    const std::int64_t largest = std::ranges::max(all_, {}, &Sum::bytes).bytes;
    SumsTogether together;
    std::array<std::int64_t, kSumClasses> largest_of{}, count{};
    for (const Sum& sum : all_) {
      const std::int64_t blocks = layout_.disk.in_blocks(sum.bytes), uses = sum.buffer->uses();
      const std::size_t of_class = sum_class(sum.bytes, largest);
      for (const int block : sum.buffer->blocks)
        together.count(of_class, block, sum.buffer->uses());
      largest_of[of_class] = std::max(largest_of[of_class], blocks);
      count[of_class] += uses;
      // A later micro-batch is added to what is there, and so are the later uses of a tied
      // parameter, whose norm is then read; the update reads the result.
      const std::int64_t micros = layout_.accumulation, added = uses > 1 ? 1 : 0;
      out.disk += uses * blocks;
      out.written += blocks * (uses * micros + added);
      out.read += blocks * (uses * (micros - 1) + 1 + added * (uses + 1));
    }
    for (std::size_t c = 0; c < kSumClasses; ++c) {
      const std::int64_t buffers = std::min<std::int64_t>(
          count[c], sum_buffers(layout_.offload->buffers, together.most()[c]));
      out.buffers += static_cast<int>(buffers);
      out.sums += buffers * largest_of[c];
    }
  }

 private:
  struct Sum {
    const PlannedBuffer* buffer = nullptr;
    std::int64_t bytes = 0;
  };
  const Layout& layout_;
  std::vector<Sum> all_;
};

// The gradients of one size that are summed over the same ranks share buffers.
struct Pool {
  GroupSizes ranks;
  int uses = 0;
};

}  // namespace

GradientBytes gradient_bytes(const PlannedStage& stage,
                             const Layout& layout,
                             std::int64_t tokens,
                             std::int64_t ids) {
  const ReductionOptions reduction = layout.reduction_options();
  const auto value = static_cast<std::int64_t>(size_of(layout.sums));
  GradientBytes out;
  out.sums_of_blocks.assign(static_cast<std::size_t>(stage.blocks), 0);
  OnDisk on_disk(layout);
  std::map<std::pair<std::uint16_t, std::int64_t>, Pool> pools;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (!buffer.group.trainable) continue;
    const std::int64_t numel = buffer.layout.numel();
    const bool local = reduction.locally() && buffer.ranks.inputs() > 1;
    const std::int64_t bytes = sum_bytes(reduction, buffer.ranks.fold, numel, buffer.ranks.slices);
    const ParamInfo* const table = table_of(buffer, layout);
    const std::int64_t rows =
        table == nullptr ? 0 : rows_kept(buffer, table->shape.front(), layout, tokens, ids);
    // Of the uses of a tied table, that of the embedding needs only its few rows.
    const bool instead = rows > 0 && buffer.uses() > 1 && !local;
    const bool rests = on_disk.take(buffer, bytes, local);
    if (!rests) out.sums += (instead ? buffer.uses() - 1 : buffer.uses()) * bytes;
    if (rows > 0) out.rows += rows * (table->local_numel() / table->shape.front()) * value;
    // While ranks sum their own gradients, these are whole on every rank, and live in buffers of
    // their own as long as the training.
    const bool stays = rests || (local && buffer.ranks.slices == 1);
    for (std::size_t use = instead ? 1 : 0; use < buffer.blocks.size() && !stays; ++use)
      out.sums_of_blocks[static_cast<std::size_t>(buffer.blocks[use])] += bytes;
    if (layout.sums != DType::F32)
      out.widened =
          std::max(out.widened, 4 * numel / (stage.zero_stage == 0 ? 1 : buffer.ranks.fold));
    if (reduction.keeps_residuals(buffer.ranks.fold)) out.residuals += 2 * buffer.uses() * numel;
    Pool& pool = pools[{buffer.group.axes.fold.bits(), numel}];
    pool.ranks = buffer.ranks;
    pool.uses += buffer.uses();
  }
  for (const auto& [key, pool] : pools) {
    const std::int64_t numel = key.second;
    const int fold = pool.ranks.fold, slices = pool.ranks.slices;
    out.in_flight +=
        in_flight(reduction, fold, numel, pool.uses, slices).bytes(reduction, fold, numel, slices);
  }
  on_disk.add_to(out);
  return out;
}

}  // namespace tessera::parallel
