// SPDX-License-Identifier: Apache-2.0
// The working weights of one flat buffer on this rank: whole on every rank, or (ZeRO stage 3) a
// shard, gathered before a block uses it and released after. Source: Rajbhandari et al. 2020,
// "ZeRO: memory optimizations toward training trillion parameter models".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/world.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/parallel/packed_weights.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

/// Replicated: every rank writes all weights. Whole: a rank writes its part and has all parts
/// (stages 1 and 2). Sharded: a rank has its part, and all parts only while they are used (stage
/// 3). If there are several ranks along GroupAxes::copies, those along GroupAxes::inner together
/// hold all parts: a rank keeps its own part and those of the ranks that it represents in its
/// group, so that gathers stay inside the group. Source: Wang et al. 2023, "ZeRO++" (hpZ); Zhang et
/// al. 2022, "MiCS". Packed: every rank has all weights in fewer bits (packed_weights.h), and
/// unpacks them while they are used; they are frozen.
enum class Residency : std::uint8_t { Replicated, Whole, Sharded, Packed };

/// The form in which sharded weights are sent. Values: the working dtype. Int8: 8-bit codes
/// (byte_codes.h); all ranks then compute with the same decoded values, and a rank's own part stays
/// exact.
/// Source: Wang et al. 2023, "ZeRO++" (qwZ).
enum class GatherForm : std::uint8_t { Values, Int8 };

/// Memory: numel elements (Sharded: numel / ranks along GroupAxes::inner) in memory that peers
/// read, and numel more in private memory while gathered; Sharded with GatherForm::Int8: the rank's
/// part, the codes of the parts that it keeps in memory that peers read, and while gathered all
/// codes until they are decoded; Packed: that of PackedWeights, and numel more while gathered. Used
/// only on the rank's own thread. post() and written() are collective.
class WorkingWeights {
 public:
  WorkingWeights(comm::World& world,
                 const GroupRanks& ranks,
                 const FlatLayout& layout,
                 DType dtype,
                 Residency residency,
                 PackingOptions packing = {},
                 GatherForm form = GatherForm::Values);
  ~WorkingWeights();
  WorkingWeights(WorkingWeights&&) noexcept;
  /// Returns weights that read the memory of `lender`, which may end before them: whole() is the
  /// same tensor, or, if Sharded, has memory of its own while gathered. The lender's must be
  /// complete, and from then on nobody writes them. Not for Packed. Memory: none besides.
  static WorkingWeights borrowed_from(const WorkingWeights& lender);
  WorkingWeights& operator=(WorkingWeights&&) = delete;

  [[nodiscard]] Residency residency() const { return residency_; }
  [[nodiscard]] bool sharded() const { return residency_ == Residency::Sharded; }
  /// If Packed: the weights of this rank, which replace own() and must be filled; else nullptr.
  [[nodiscard]] PackedWeights* packed() const { return packed_.get(); }
  /// Returns whether whole() has memory only while gathered.
  [[nodiscard]] bool comes_and_goes() const { return sharded() || packed_ != nullptr; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  /// [layout.numel()]. If Sharded or Packed, its storage, shared by every view of it, has memory
  /// only while gathered; tensors that autograd saved become valid again with the next gather.
  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  /// The part that this rank writes, [layout.shard_numel()], or [layout.numel()] if Replicated;
  /// always allocated, but undefined if Packed.
  [[nodiscard]] const at::Tensor& own() const { return own_; }

  /// Starts the gather of all parts into whole(), unless it is done or under way. If Packed:
  /// unpacks them.
  void post();
  /// Waits until whole() can be read; posts the gather first if needed.
  void wait();
  /// If Sharded or Packed: frees the memory of whole(), after the collective operations under way
  /// have ended.
  void release();
  /// Waits until this rank may write own(), because peers have read it. Gathered weights are stale
  /// after this.
  void begin_write();
  /// Call after own() was written: starts to send it to the ranks that keep it; if Whole, to all
  /// ranks; if Sharded, to those that represent this one in other groups.
  void written();
  /// Waits until what written() started is done.
  void settle();
  /// If not Sharded and nothing is under way: frees the memory; whole(), own() and their views must
  /// not be used again.
  void forget();
  /// True if whole() is gathered or being gathered.
  [[nodiscard]] bool gathered() const { return gathered_; }

 private:
  struct Borrowed {};
  WorkingWeights(const WorkingWeights& lender, Borrowed /*how*/);
  void gather_values();
  void gather_codes();
  void decode();

  std::string name_;
  comm::World* world_;
  const comm::Group* group_;     ///< the group that gathers
  const comm::Group* replicas_;  ///< Sharded: the ranks that keep the same parts
  DType dtype_;
  Residency residency_;
  std::unique_ptr<PackedWeights> packed_;
  comm::RegionPtr region_;
  at::Tensor whole_, own_;
  at::Tensor kept_;                    ///< Sharded: one part per replica, including own()
  std::vector<comm::WorkPtr> works_;   ///< the gather's operations, one per kept part
  std::vector<comm::WorkPtr> spread_;  ///< send own() to the replicas
  GatherForm form_;
  at::Tensor kept_codes_;      ///< Int8: codes of one part per replica, which peers read
  at::Tensor gathered_codes_;  ///< Int8: codes of all parts, until wait() has decoded them
  bool gathered_ = false;
};

}  // namespace tessera::parallel
