// SPDX-License-Identifier: Apache-2.0
// Gradients of the data-parallel ranks, summed and sharded over them; those of each flat buffer
// over the ranks of its own fold (group_axes.h).
//
// Micro-batch j = m * n + r (m: accumulation step, n: ranks, r: rank). With Reduction::Each the
// owner of a shard keeps its accumulator; the gradient of every micro-batch is reduced into it in
// rank order while earlier blocks still run their backward:
//   ((g_0 + g_1) + g_2) + ...
// so 1 x 4, 2 x 2 and 4 x 1 ranks x accumulation give the same bits. Reduction::Once sends less:
// stages 0 and 1 sum their own micro-batches first and reduce after the last one; stages 2 and 3
// reduce every micro-batch and add the sum to the shard.
//
// Parameters of experts: rank (d, k), d along the fold and k along GroupAxes::sources, has number
// r = d e + k among the data-parallel ranks, e the number of sources. It computes one gradient for
// each source s, from the tokens of micro-batch m n + d e + s, and keeps them apart as slices. The
// owner of a shard adds the slices of the fold's members, member after member and slice after
// slice: again in the order of the global micro-batches, so that every e gives the same bits.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/gradient_norm.h"
#include "tessera/parallel/gradient_rows.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/nonfinite_search.h"
#include "tessera/parallel/reduction_options.h"
#include "tessera/parallel/resting_sums.h"
#include "tessera/parallel/sent_residuals.h"

namespace tessera::parallel {

/// Memory, with b bytes of `accumulate`: accumulators take b / n per parameter element and use
/// (Once in stages 0 and 1: b), counted as Tag::Gradients. Buffers for the gradients of one or two
/// blocks of each size, or fewer, are counted as Tag::GradientsInFlight; with a narrow `comm_dtype`
/// each element takes 4 bytes, and 4 or 8 for what is sent and received. If a use's gradients are
/// rows, its accumulator is allocated once the rows are more than a quarter of it; `local` sums and
/// buffers of a size are always allocated. Error feedback takes what SentResiduals says. With a
/// tier, accumulators of at least one of its blocks rest there (RestingSums), except for `local`
/// sums: an accumulator is written when its block's reduction has ended, and read by what uses it
/// next.
///
/// A reduction starts after its block's backward and is waited for when its buffer or its
/// accumulator is used again: with two buffers, after the backward of the previous block. Used only
/// on the rank's own thread.
class GradientReduction final : public Policy {
 public:
  /// World, model, and the tier of `place`, if any, must outlive this.
  GradientReduction(comm::World& world,
                    ModelInstance& model,
                    ReductionOptions options,
                    SumPlace place = {});
  ~GradientReduction() override;

  void begin(std::span<const Action> actions) override;
  /// In the backward of a block, before() opens the gradient sinks and after() starts their
  /// reduction. After any block, pending transfers make progress.
  void before(const Action& action, const BlockRun& run) override;
  void after(const Action& action, const BlockRun& run) override;

  /// Allocates memory again for the groups that the model now trains. Call it between steps, on all
  /// ranks, after ModelInstance::freeze_sets().
  void follow_model();

  /// Sets whether gradients of the following steps stay on the rank that computed them; then own()
  /// is this rank's sum, and nothing is sent. Needs Reduction::Once in stage 0 or 1, or a single
  /// rank; throws Error{Unsupported} if buffers have different folds.
  void keep_own(bool on);
  /// This rank's own sum of the group's whole gradient, [layout.numel()] fp32. The step's gradient
  /// is the mean over the ranks times the number of ranks.
  [[nodiscard]] at::Tensor own(int group) const;

  /// Sets the loss scale of the following gradients. `feeds_back`: with error feedback, codes of
  /// these gradients take up the residuals and change them.
  void prepare(double loss_scale, bool feeds_back) {
    feedback_scale_ = loss_scale;
    feeds_back_ = feeds_back;
  }
  /// The residuals of error feedback on this rank; nullptr without it.
  [[nodiscard]] SentResiduals* residuals() { return residuals_ ? &*residuals_ : nullptr; }

  /// Calls `arrived` in each step for groups whose shard() is complete before finish(): during the
  /// backward pass of the last micro-batch, one block later. Not for groups that several blocks or
  /// stages use, whose gradients are rows, or whose ranks share the tokens. nullptr: none.
  using Arrived = std::function<void(int group)>;
  void on_arrival(Arrived arrived) { arrived_ = std::move(arrived); }

  /// The groups of which on_arrival() tells in a step of the model's own passes, in the order in
  /// which a backward pass from the last block to the first completes them.
  [[nodiscard]] std::vector<int> arriving() const;

  /// Waits for all reductions, adds the uses of tied parameters in block order, and adds the
  /// gradients of ranks that share the tokens. Afterwards shard() is the step's gradient.
  void finish();
  /// This rank's part of the group's gradient, [layout.shard_numel()] fp32; undefined for frozen
  /// groups. With BF16 accumulators it is a copy. A sum that rests in a tier is in memory as long
  /// as the tensor exists; the next group's is read meanwhile.
  [[nodiscard]] at::Tensor shard(int group);
  /// The whole gradient of the group on every rank (stage 0), fp32; valid until the next call.
  at::Tensor gather(int group);
  /// Clips every element of the sum to [-limit, limit]; call after finish().
  void clamp(double limit);

  /// GradientNorm::chunk_sums(), or rank_sums() if several ranks keep their own gradients; then the
  /// norm of the whole gradient is not known.
  std::vector<double> chunk_sums();
  using Suspect = GradientNorm::Suspect;
  /// GradientNorm::suspect(); empty if ranks keep their own gradients.
  [[nodiscard]] std::optional<Suspect> suspect(std::span<const double> sums) const;

  /// Finds the origin of the first non-finite gradient. Between start_diagnosis() and diagnosis()
  /// the same step runs again; nothing is reduced meanwhile.
  using Culprit = NonfiniteSearch::Culprit;
  void start_diagnosis() { diagnosing_ = true; }
  std::optional<Culprit> diagnosis();
  /// Finds it without a second run: every gradient is checked before it is reduced, which costs one
  /// pass over it.
  void watch(bool on) { watching_ = on; }
  using Finding = NonfiniteSearch::Finding;
  [[nodiscard]] Finding finding() { return search_.finding(); }
  [[nodiscard]] std::optional<Culprit> culprit(std::span<const double> all) const {
    return search_.culprit(all);
  }

 private:
  struct UseSlot;
  /// Memory for the gradient of one micro-batch of one use, readable by peers.
  struct Buffer {
    comm::RegionPtr region;
    const GroupRanks* ranks = nullptr;
    /// In the communication dtype, or codes: slice after slice, and in each owner after owner.
    at::Tensor flat;
    at::Tensor reduced;  ///< Once in stages 2 and 3: the sum to add to the accumulator
    /// Narrow, or several slices: the owner's parts of every rank's gradient, as in `flat`.
    at::Tensor received;
    at::Tensor target;                 ///< the tensor into which `received` is to be reduced
    bool stores = false;               ///< overwrites `target` instead of adding to it
    std::vector<comm::WorkPtr> works;  ///< the last operations on it
    UseSlot* user = nullptr;
  };
  struct Pool {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::size_t next = 0;
    at::Tensor staging;  ///< fp32; written by sinks if the communication dtype is another
    const GroupRanks* ranks = nullptr;
    int uses = 0;
  };
  /// A block writes all its uses at once, and a tied table may be as large as the rest.
  struct PoolKey {
    std::uint16_t fold = 0;  ///< AxisSet::bits()
    std::int64_t numel = 0;  ///< of a slice
    int index = 0;           ///< among the block's uses of that fold and size
    auto operator<=>(const PoolKey&) const = default;
  };
  struct UseSlot {
    const GroupRanks* ranks = nullptr;
    /// Allocated from the first backward of a step to the next step, or a view of `local`.
    at::Tensor accumulator;
    Pool* pool = nullptr;
    /// Holds the last micro-batch's gradient, or is what `local` is sent from.
    Buffer* buffer = nullptr;
    std::unique_ptr<Buffer> local;  ///< Once in stages 0 and 1: this rank's sum of each slice
    bool add_reduced = false;       ///< buffer->reduced is still to be added
    RowGradient rows;
    at::Tensor residual;  ///< undefined without error feedback
    /// Among resting_, if the accumulator rests in a tier; it is then defined only while used.
    std::optional<std::size_t> resting;
    bool stored = false;    ///< if it rests: it has values of this step
    bool complete = false;  ///< it has those of the step's last micro-batch
    /// If it rests, and nothing has changed it since the last micro-batch: sums of squares of its
    /// chunks, so that the norm need not read it.
    std::vector<double> squares;
    [[nodiscard]] bool has_sum() const { return accumulator.defined() || stored; }
    /// True if the accumulator is a view of `local`.
    [[nodiscard]] bool in_local() const { return local && ranks->slices == 1; }
  };
  struct Slot {
    std::vector<UseSlot> uses;
  };
  void allocate();
  void let_sums_rest();
  Buffer& acquire(Pool& pool);
  std::unique_ptr<Buffer> make_buffer(const GroupRanks& ranks,
                                      std::int64_t numel,
                                      DType dtype) const;
  void exchange(Buffer& buffer, const at::Tensor& out, comm::Write write, comm::CallSite site);
  void round_into(Buffer& buffer, const at::Tensor& gradient, const at::Tensor& residual) const;
  void reduce_received(Buffer& buffer) const;
  void settle(UseSlot& use);
  void take(const FlatGroup& group, UseSlot& use);
  void make_room(std::size_t of_class);
  void store(UseSlot& use);
  void store_sums(const BlockRun& run);
  [[nodiscard]] at::Tensor in_memory(UseSlot& use, RestingSums::Use how);
  void open(const BlockRun& run);
  at::Tensor open_dense(const FlatGroup& group, UseSlot& slot, const BlockRun& run);
  [[nodiscard]] std::vector<GradSink*> sinks_of(const BlockRun& run) const;
  void post(const BlockRun& run);
  void reduce(int group, const BlockUse& use, UseSlot& slot, const BlockRun& run);
  [[nodiscard]] bool keeps_apart() const { return keeps_own_ && dense_.fold->size() > 1; }
  [[nodiscard]] bool takes_rows(const UseSlot& slot, const BlockRun& run) const {
    return !keeps_apart() && rows_.takes_rows(slot.rows, run.micro);
  }
  DenseGradient dense_of(const FlatGroup& group, UseSlot& slot, const BlockRun& run);
  void make_dense(const FlatGroup& group, UseSlot& slot);
  [[nodiscard]] bool locally() const { return options_.locally(); }
  [[nodiscard]] bool narrow() const { return options_.narrow(); }
  [[nodiscard]] bool direct(const UseSlot& use, int micro) const {
    return options_.direct(use.ranks->inputs(), micro);
  }
  [[nodiscard]] at::Tensor target(UseSlot& use, int micro);
  [[nodiscard]] const at::Tensor& sum_of(const UseSlot& use) const {
    return keeps_own_ && use.local ? use.local->flat : use.accumulator;
  }
  void add_uses(const FlatGroup& group, Slot& slot);
  [[nodiscard]] bool arrives_early(int group) const;
  void tell_arrivals();

  comm::World& world_;
  ModelInstance& model_;
  ReductionOptions options_;
  GroupRanks dense_;  ///< the ranks of all parameters but those of experts
  std::vector<Slot> slots_;
  std::map<PoolKey, Pool> pools_;
  RowGradients rows_;
  std::optional<SentResiduals> residuals_;  ///< only with error feedback
  SumPlace place_;
  std::optional<RestingSums> resting_;  ///< only with a tier
  std::deque<UseSlot*> held_;           ///< whose accumulators rest and are in memory
  OfSumClasses together_{};             ///< the highest number of these in one block
  double feedback_scale_ = 1;
  bool feeds_back_ = true;
  std::optional<GradientNorm> norm_;  ///< always has a value
  NonfiniteSearch search_;
  bool diagnosing_ = false, watching_ = false, keeps_own_ = false;
  Arrived arrived_;
  std::vector<int> coming_;  ///< groups of the last block, whose reduction was started
};

}  // namespace tessera::parallel
