// SPDX-License-Identifier: Apache-2.0
// Gradients of the data-parallel ranks, summed and sharded over them.
//
// Micro-batch j = m * n + r (m: accumulation step, n: ranks, r: rank). With Reduction::Each the
// owner of a shard keeps its accumulator; the gradient of every micro-batch is folded into it in
// rank order while earlier blocks still run their backward:
//   ((g_0 + g_1) + g_2) + ...
// so 1 x 4, 2 x 2 and 4 x 1 ranks x accumulation give the same bits. Reduction::Once moves less:
// stages 0 and 1 sum their own micro-batches first and reduce after the last one; stages 2 and 3
// reduce every micro-batch and add the sum to the shard.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/row_exchange.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {

enum class Reduction : std::uint8_t { Each, Once };

struct FoldOptions {
  int stage = 1;  ///< of ZeRO; Reduction::Once depends on it
  Reduction reduction = Reduction::Each;
  DType accumulate = DType::F32;  ///< F32, or BF16: rounded after every accumulation step
  /// F32 sums: BF16 or F16 rounds the gradient of every micro-batch (Once in stages 0 and 1: this
  /// rank's sum), which then travels in half the bytes; the fold stays in fp32.
  DType travel = DType::F32;
  /// Elements: a second buffer for blocks of a size is made where two fit into this.
  std::int64_t bucket = std::numeric_limits<std::int64_t>::max();
  /// Gradients of tables over the vocabulary travel as rows where that is less. Those of a tied
  /// table's first use do anyway, where both uses lie on one stage and sums are in fp32.
  bool sparse_rows = false;
  int max_micros = 1;  ///< most micro-batches a step will have on this rank

  /// Each rank sums whole gradients of its own.
  [[nodiscard]] bool locally() const { return reduction == Reduction::Once && stage < 2; }
  /// What travels is narrower than the sums.
  [[nodiscard]] bool narrow() const { return travel != DType::F32 && accumulate == DType::F32; }
  /// The gradient of micro-batch `micro` is made where the sum is.
  [[nodiscard]] bool direct(int ranks, int micro) const {
    return ranks == 1 && accumulate == DType::F32 && (locally() || (micro == 0 && !narrow()));
  }
};

/// What the gradients of one size are made in and travel through, Tag::GradientsInFlight.
struct InFlight {
  int buffers = 0;  ///< 0 to 2 at a time, of values of `type`
  DType type = DType::F32;
  bool reduced = false;   ///< each with a shard in the type of the sums
  bool received = false;  ///< each with as much again for what ranks send
  bool staging = false;   ///< and once as fp32, where sinks write
  /// Of gradients of `numel` elements with `options` on `ranks` ranks.
  [[nodiscard]] std::int64_t bytes(const FoldOptions& options, int ranks, std::int64_t numel) const;
};
/// `homes`: blocks that make gradients of `numel` elements.
InFlight in_flight(const FoldOptions& options, int ranks, std::int64_t numel, int homes);

/// Memory, with b bytes of `accumulate`: b / n a parameter and home for the accumulators (Once in
/// stages 0 and 1: b), Tag::Gradients; and, Tag::GradientsInFlight, buffers for the gradients of
/// one or two blocks of each size, or fewer; with a narrow `travel` each of them 4 bytes and 4 or 8
/// for what is sent and received. Where a home's gradients are rows its accumulator is made when
/// they are more than a quarter of it; `local` sums and buffers of a size are made all the same.
///
/// A reduction is posted behind its block's backward, and waited for where its buffer or its
/// accumulator is used again: with two buffers behind the backward of the block before.
/// Threads: the rank's own.
class GradientFold final : public Policy {
 public:
  GradientFold(comm::World& world, ModelInstance& model, FoldOptions options);
  ~GradientFold() override;

  void begin(std::span<const Action> actions) override;
  /// Backward of a block: opens its gradient sinks before, folds them after. Any block: what is
  /// under way goes on.
  void before(const Action& action, const BlockRun& run) override;
  void after(const Action& action, const BlockRun& run) override;

  /// Whether gradients of the steps to come stay with the rank that made them: own() then is its
  /// sum, and nothing moves. Needs Reduction::Once in stage 0 or 1, or one rank.
  void keep_own(bool on);
  /// The rank's own sum of the group's whole gradient, [layout.numel()] fp32; the mean over the
  /// ranks times their number is the step's gradient.
  [[nodiscard]] at::Tensor own(int group) const;

  /// Waits for all folds and adds the homes of tied parameters in block order; where ranks share
  /// the tokens, adds what each found on its own. After it shard() is the step's gradient.
  void finish();
  /// This rank's part of the group's gradient, [layout.shard_numel()] fp32; undefined for frozen
  /// groups. With BF16 accumulators a copy.
  [[nodiscard]] at::Tensor shard(int group) const;
  /// The whole gradient of the group on every rank (stage 0), fp32; valid until the next call.
  at::Tensor gather(int group);
  /// Clips every element of the sum to [-limit, limit]; after finish().
  void clamp(double limit);

  /// Sum of squares of every chunk of every parameter, in one order that no layout changes, on
  /// every rank. Where gradients are kept, the norm of the whole is not known: then what each rank
  /// gives to the mean square of the ranks' own norms.
  std::vector<double> chunk_sums();

  /// The parameter where a sum of chunk_sums() that is not finite most likely began. What is not
  /// finite spreads to the blocks before, so the last block that has one of its own speaks; a tied
  /// parameter hears of several and speaks only where no other does. Unknown where gradients are
  /// kept. Costs nothing, the same on every rank.
  struct Suspect {
    std::string block, tensor;
  };
  [[nodiscard]] std::optional<Suspect> suspect(std::span<const double> sums) const;

  /// Where the first gradient that is not finite came from. Between start_diagnosis() and
  /// diagnosis() the same step runs again; nothing is folded meanwhile.
  struct Culprit {
    int rank = 0;
    int micro = 0;
    std::string block, tensor;
  };
  void start_diagnosis();
  std::optional<Culprit> diagnosis();
  /// Without a second run: every gradient is looked at before it is folded, which costs a pass over
  /// it.
  void watch(bool on) { watching_ = on; }
  /// What this rank found in the last step, as numbers that ride along with a reduction.
  using Finding = std::array<double, 3>;
  [[nodiscard]] Finding finding() const;
  /// From the findings of all ranks of the world, one behind the other.
  [[nodiscard]] std::optional<Culprit> culprit(std::span<const double> all) const;

 private:
  struct HomeSlot;
  /// Room for the gradient of one micro-batch of one home, readable by peers.
  struct Buffer {
    comm::RegionPtr region;
    at::Tensor flat;      ///< in the dtype that travels
    at::Tensor reduced;   ///< Once in stages 2 and 3: what is added to the accumulator
    at::Tensor received;  ///< narrow: the owner's part of every rank's gradient
    at::Tensor folds;     ///< narrow: where `received` waits to be folded into
    bool stores = false;  ///< not added to what `folds` holds
    comm::WorkPtr work;   ///< the last operation on it
    HomeSlot* user = nullptr;
  };
  struct Pool {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::size_t next = 0;
    at::Tensor staging;  ///< fp32, where sinks write if what travels is not
  };
  /// Elements of a buffer, and which of the block's homes of that size uses it: a block writes all
  /// of its own at once, and a tied table may be as large as the rest.
  using PoolKey = std::pair<std::int64_t, int>;
  struct HomeSlot {
    at::Tensor accumulator;  ///< from its first backward of a step to the next step, or `local`'s
    Pool* pool = nullptr;
    Buffer* buffer = nullptr;       ///< of the last micro-batch, or that `local` travels in
    std::unique_ptr<Buffer> local;  ///< Once in stages 0 and 1: the sum of this rank
    bool add_reduced = false;       ///< buffer->reduced waits to be added
    bool rows = false;              ///< may be few rows of a table
    bool only_rows = false;         ///< all that was folded in this step, on every rank
    std::optional<RowSum> own;      ///< then of this rank, of the micro-batches that it sums itself
    std::optional<RowSum> sum;      ///< and of all ranks, while that is less than the accumulator
  };
  struct Slot {
    std::vector<HomeSlot> homes;
  };
  void allocate();
  Buffer& acquire(Pool& pool);
  std::unique_ptr<Buffer> make_buffer(std::int64_t numel, DType dtype) const;
  void exchange(Buffer& buffer, const at::Tensor& out, comm::Fold fold, comm::CallSite site);
  void fold_received(Buffer& buffer) const;
  void settle(HomeSlot& home);
  void take(const FlatGroup& group, HomeSlot& home);
  void open(const BlockRun& run);
  at::Tensor open_dense(const FlatGroup& group, HomeSlot& slot, const BlockRun& run);
  [[nodiscard]] std::vector<GradSink*> sinks_of(const BlockRun& run) const;
  void post(const BlockRun& run);
  void inspect(const BlockRun& run);
  void reduce(int group, const Home& home, HomeSlot& slot, const BlockRun& run);
  // Of few rows, in gradient_rows.cpp.
  [[nodiscard]] bool may_have_rows(const FlatGroup& group, std::size_t home) const;
  [[nodiscard]] bool takes_rows(const HomeSlot& slot, const BlockRun& run) const;
  bool open_rows(const FlatGroup& group, const Home& home, HomeSlot& slot, const BlockRun& run);
  bool reduce_rows(const FlatGroup& group, const Home& home, HomeSlot& slot, const BlockRun& run);
  void make_own_dense(const FlatGroup& group, HomeSlot& slot, const BlockRun& run);
  RowExchange::Outcome fold_rows(const FlatGroup& group, HomeSlot& slot, bool first);
  void make_dense(const FlatGroup& group, HomeSlot& slot);
  [[nodiscard]] bool locally() const { return options_.locally(); }
  [[nodiscard]] bool narrow() const { return options_.narrow(); }
  [[nodiscard]] bool direct(int micro) const { return options_.direct(group_.size(), micro); }
  [[nodiscard]] at::Tensor target(HomeSlot& home, int micro);
  [[nodiscard]] const at::Tensor& sum_of(const HomeSlot& home) const {
    return keeps_own_ && home.local ? home.local->flat : home.accumulator;
  }
  std::vector<double> own_sums();
  void add_homes(const FlatGroup& group, Slot& slot);
  void add_over_stages(std::size_t group);
  std::vector<double> over_stages(std::vector<double> mine);
  void add_shares();
  void add_over_context();
  std::vector<double> over_boxes(std::vector<double> ordered);

  comm::World& world_;
  ModelInstance& model_;
  FoldOptions options_;
  const comm::Group& group_;
  std::vector<Slot> slots_;
  std::map<PoolKey, Pool> pools_;
  RowExchange rows_;
  comm::RegionPtr sums_region_;
  std::int64_t chunks_per_rank_ = 0;
  bool diagnosing_ = false, watching_ = false, keeps_own_ = false;
  /// Of this rank: micro-batch, block, and the parameter's index in ModelInstance::places().
  struct Found {
    int micro, block, place;
  };
  std::optional<Found> found_;
};

}  // namespace tessera::parallel
